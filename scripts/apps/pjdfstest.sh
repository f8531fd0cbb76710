# pjdfstest: what every system call answers, changes and refuses, by root and by other users.
program=$("$ROOT/scripts/pjdfstest")
mkdir -p "$M/pjdfstest"
cd "$M/pjdfstest"
if ! "$program" -c "$ROOT/scripts/apps/pjdfstest.toml" -p "$M/pjdfstest" > "$S.pjdfstest" 2>&1; then
    grep -A3 FAILED "$S.pjdfstest"
    exit 1
fi
grep '^Summary' "$S.pjdfstest"
cd /
rm -r "$M/pjdfstest"
