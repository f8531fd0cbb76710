# pgbench on the mount, kill -9 of the server under load, restart, checksums. SECONDS_RUN: of load.
B=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)
D=$M/pg/data
mkdir "$M/pg"
chown postgres "$M/pg"
chmod 755 "$M"
SOCK=$(mktemp -d)
chown postgres "$SOCK"
pg() {
    (cd /tmp && setpriv --reuid=postgres --regid=postgres --init-groups env HOME=/tmp "$@")
}
start() {
    pg "$B/pg_ctl" -D "$D" -o "-k $SOCK -p 54177 -c listen_addresses=''" -l "$SOCK/log" \
        -w start >/dev/null || { cat "$SOCK/log"; exit 1; }
}
bench() { pg "$B/pgbench" -h "$SOCK" -p 54177 "$@" b 2>/dev/null; }
ask() { pg "$B/psql" -h "$SOCK" -p 54177 -Atc "$1" b; }
trap 'pg $B/pg_ctl -D $D -m immediate stop >/dev/null 2>&1 || true; rm -rf $SOCK' EXIT
pg "$B/initdb" -k -D "$D" >/dev/null
start
pg "$B/createdb" -h "$SOCK" -p 54177 b
bench -i -s 5 -q
bench -T "$SECONDS_RUN" -c 4 | grep tps
(bench -T 5 -c 4 >/dev/null || true) &
sleep 2
SERVER=$(head -1 "$D/postmaster.pid")
kill -9 "$SERVER" $(pgrep -P "$SERVER")
wait || true
for _ in $(seq 50); do pgrep -P "$SERVER" >/dev/null || break; sleep 0.1; done
sleep 1
rm -f "$D/postmaster.pid" "$SOCK"/.s.*
start
[ "$(ask 'select count(*) from pgbench_accounts')" = 500000 ]
ACCOUNTS=$(ask 'select sum(abalance) from pgbench_accounts')
[ "$ACCOUNTS" = "$(ask 'select sum(bbalance) from pgbench_branches')" ]
pg "$B/pg_ctl" -D "$D" -w stop >/dev/null
pg "$B/pg_checksums" -D "$D" -c | grep 'Bad checksums:  0'
