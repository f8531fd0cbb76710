# fsx with mmap, holes and copies. OPS: how many operations. SEED: the day where not given.
X=${CARGO_HOME:-$HOME/.cargo}/bin/fsx
[ -x "$X" ] || { echo "fsx is missing: run scripts/setup --test"; exit 1; }
CONFIG=$(mktemp)
trap 'rm -f $CONFIG' EXIT
cat >"$CONFIG" <<TOML
flen = 1048576
[weights]
close_open = 1
invalidate = 1
truncate = 2
fsync = 1
fdatasync = 1
read = 10
write = 10
mapread = 5
mapwrite = 5
punch_hole = 1
copy_file_range = 1
posix_fallocate = 1
TOML
SEED=${SEED:-$(date +%j)}
cd "$M"
"$X" -q -f "$CONFIG" -N "$OPS" -S "$SEED" fsx || { echo "fsx seed $SEED"; exit 1; }
