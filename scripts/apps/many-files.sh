# FLAT files in one directory, SPREAD directories of a thousand.
mkdir "$M/flat"
cd "$M/flat"
seq 1 "$FLAT" | xargs touch
[ "$(ls -U | wc -l)" = "$FLAT" ]
[ "$(ls -U | sort -u | wc -l)" = "$FLAT" ]
mkdir "$M/spread"
cd "$M/spread"
for d in $(seq 1 "$SPREAD"); do
    mkdir "d$d"
    (cd "d$d" && seq 1 1000 | xargs touch)
done
[ "$(find "$M/spread" -type f | wc -l)" = $((SPREAD * 1000)) ]
cd /
rm -rf "$M/flat" "$M/spread"
