# Inserts and updates, then dies in the middle of a transaction. ROWS: how many rows.
cd "$M"
sqlite3 x.db "create table t(a integer primary key, b text);
    with recursive c(i) as (select 1 union all select i+1 from c where i<$ROWS)
    insert into t select i, hex(randomblob(40)) from c;
    update t set b='x' where a%7=0;"
mkfifo "$S/run/sqlite.pipe"
sqlite3 x.db <"$S/run/sqlite.pipe" &
VICTIM=$!
exec 9>"$S/run/sqlite.pipe"
{
    echo "begin;"
    for i in $(seq 1 20000); do echo "update t set b='dead' where a=$i;"; done
} >&9
sleep 1
kill -9 $VICTIM
exec 9>&-
wait || true
[ "$(sqlite3 x.db 'pragma integrity_check')" = ok ]
[ "$(sqlite3 x.db "select count(*) from t where b='dead'")" = 0 ]
[ "$(sqlite3 x.db 'select count(*) from t')" = "$ROWS" ]
