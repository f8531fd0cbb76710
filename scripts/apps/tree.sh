# Copies a real tree in, compares it, copies, syncs, lists and removes it. FILES: how many files.
T=$(ls -d "${CARGO_HOME:-$HOME/.cargo}"/registry/src/* | head -1)
LIST=$(mktemp) WANT=$(mktemp)
trap 'rm -f $LIST $WANT' EXIT
cd "$T"
find . -type f | sort | awk -v n="$FILES" 'NR<=n' >"$LIST"
mkdir "$M/tree"
tar -cf - --no-recursion -T "$LIST" | tar -xf - -C "$M/tree"
tr '\n' '\0' <"$LIST" | xargs -0 sha256sum >"$WANT"
(cd "$M/tree" && sha256sum --quiet -c "$WANT")
cp -a "$M/tree" "$M/copy"
rsync -a --delete "$M/tree/" "$M/synced/"
diff -r "$M/copy" "$M/synced"
ls -lR "$M/tree" >/dev/null
rm -rf "$M/copy"
find "$M/synced" -delete
[ ! -e "$M/synced" ]
