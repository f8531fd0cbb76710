# Two clones of one repository in one tree, each worked in through a mount of its own: commits,
# pushes and pulls at the same time. COMMITS: of each.
mkdir "$M/clones"
git init -q --bare -b main "$M/clones/shared.git"
git clone -q "$ROOT" "$M/clones/a"
git -C "$M/clones/a" remote set-url origin "$M/clones/shared.git"
git -C "$M/clones/a" push -q origin HEAD:main
git clone -q "$M2/clones/shared.git" "$M2/clones/b"
work() {
    cd "$1/clones/$2"
    git config user.name "$2"
    git config user.email "$2@example.org"
    git checkout -q -B main
    git pull -q --rebase "$1/clones/shared.git" main
    for i in $(seq "$COMMITS"); do
        echo "$2 $i" >"$2.$i"
        echo "$2 $i" >>"log.$2"
        git add "$2.$i" "log.$2"
        git commit -qm "$2 $i"
        until git push -q "$1/clones/shared.git" HEAD:main 2>/dev/null; do
            git pull -q --rebase "$1/clones/shared.git" main
        done
    done
}
(work "$M" a) &
A=$!
(work "$M2" b)
wait "$A"
# Each looks at what the other one did, from its own side.
check() {
    cd "$1/clones/$2"
    git pull -q --rebase "$1/clones/shared.git" main
    [ -z "$(git status --short)" ]
    for who in a b; do
        [ "$(wc -l <"log.$who")" = "$COMMITS" ]
        for i in $(seq "$COMMITS"); do [ "$(cat "$who.$i")" = "$who $i" ]; done
    done
    git fsck --strict
    git -C "$1/clones/shared.git" fsck --strict
}
(check "$M2" a)
(check "$M" b)
[ "$(git -C "$M/clones/a" rev-parse HEAD)" = "$(git -C "$M2/clones/b" rev-parse HEAD)" ]
