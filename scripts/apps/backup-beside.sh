# PostgreSQL on one mount, a backup of its files read through another one meanwhile; a server that
# starts from that backup, on the other mount, has everything. SECONDS_RUN: of load.
B=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)
D=$M/backed/data
C=$M2/backed/copy
mkdir "$M/backed" "$C"
chown postgres "$M/backed" "$C"
chmod 755 "$M"
chmod 700 "$C"
SOCK=$(mktemp -d)
chown postgres "$SOCK"
pg() {
    (cd /tmp && setpriv --reuid=postgres --regid=postgres --init-groups env HOME=/tmp "$@")
}
start() {
    pg "$B/pg_ctl" -D "$1" -o "-k $SOCK -p $2 -c listen_addresses='' -c wal_keep_size=4GB" \
        -l "$SOCK/log.$2" -w -t 120 start >/dev/null || { cat "$SOCK/log.$2"; exit 1; }
}
ask() { pg "$B/psql" -h "$SOCK" -p "$1" -Atc "$2" b; }
stop() { pg "$B/pg_ctl" -D "$1" -m immediate stop >/dev/null 2>&1 || true; }
trap 'stop $D; stop $C; rm -rf $SOCK' EXIT
pg "$B/initdb" -k -D "$D" >/dev/null
start "$D" 54178
pg "$B/createdb" -h "$SOCK" -p 54178 b
pg "$B/pgbench" -h "$SOCK" -p 54178 -i -s 5 -q b 2>/dev/null
pg "$B/pgbench" -h "$SOCK" -p 54178 -T "$SECONDS_RUN" -c 4 b >"$SOCK/bench" 2>&1 &
BENCH=$!
sleep 2
# A backup lasts as long as the session that began it.
mkfifo "$SOCK/say"
chmod 666 "$SOCK/say"
pg "$B/psql" -h "$SOCK" -p 54178 -Atq b <"$SOCK/say" >/dev/null &
SESSION=$!
exec 9>"$SOCK/say"
echo "select pg_backup_start('beside', true); \\! touch $SOCK/began" >&9
until [ -e "$SOCK/began" ]; do sleep 0.1; done
before=$(ask 54178 'select count(*) from pgbench_history')
# Files change and go while they are read: that is what the log is for.
tar -C "$M2/backed/data" --exclude=./postmaster.pid --exclude='./pg_wal/*' \
    --warning=no-file-changed --warning=no-file-removed --ignore-failed-read -cf - . |
    tar -C "$C" -xpf - || true
printf '%s\n' "\\o $SOCK/label" \
    'select labelfile from pg_backup_stop(false);' '\o' "\\! touch $SOCK/ended" >&9
until [ -e "$SOCK/ended" ]; do sleep 0.1; done
exec 9>&-
wait "$SESSION"
cp "$SOCK/label" "$C/backup_label"
cp -a "$M2/backed/data/pg_wal"/0* "$C/pg_wal/"
chown -R postgres "$C"
wait "$BENCH" || { cat "$SOCK/bench"; exit 1; }
start "$C" 54179
[ "$(ask 54179 'select count(*) from pgbench_accounts')" = 500000 ]
[ "$(ask 54179 'select count(*) from pgbench_history')" -ge "$before" ]
[ "$(ask 54179 'select sum(abalance) from pgbench_accounts')" = \
    "$(ask 54179 'select sum(delta) from pgbench_history')" ]
for data in "$D" "$C"; do
    pg "$B/pg_ctl" -D "$data" -w stop >/dev/null
    pg "$B/pg_checksums" -D "$data" -c | grep 'Bad checksums:  0'
done
