# Clones this project onto the mount, commits, collects garbage, checks.
git clone -q "$ROOT" "$M/clone"
cd "$M/clone"
git fsck --strict
[ -z "$(git status --short)" ]
git checkout -q -b other
echo x >new
git add new
git -c user.name=n -c user.email=n@n commit -qm new
git gc -q
git fsck
