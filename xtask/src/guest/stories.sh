# What a guest does: its first process, and the stories that the kernel's command line names.
# Words of a story come as word=value on the command line.

word() { tr ' ' '\n' < /proc/cmdline | sed -n "s/^$1=//p"; }

# The machine: devices, modules, the network through which the host is 10.0.2.2.
begin() {
    mount -t proc proc /proc
    mount -t sysfs sys /sys
    mount -t devtmpfs dev /dev
    mkdir -p /run /mnt
    for module in $(cat /modules); do modprobe "$module" || echo "no module $module"; done
    ip link set lo up
    ip link set eth0 up
    ip addr add 10.0.2.15/24 dev eth0
}

# attach DEVICE NAME CONNECTIONS [PORT]
attach() {
    nbd-client 10.0.2.2 "${4:-$(word port)}" "/dev/$1" -N "$2" -C "$3" >/dev/null 2>&1
}

# nuri_attach NAME PORT PORT...: by nuri, one channel to each server; waits for /dev/nbd0.
nuri_attach() {
    name=$1
    shift
    servers=""
    for port in "$@"; do servers="$servers --server 10.0.2.2:$port"; done
    # shellcheck disable=SC2086
    nuri volume attach "$name" $servers > /tmp/device 2>/tmp/keeper &
    for _ in $(seq 100); do
        [ -s /tmp/device ] && return
        sleep 0.1
    done
    cat /tmp/keeper
    return 1
}

# fails COMMAND: it must, and what it says is in /tmp/said.
fails() {
    if "$@" 2>/tmp/said; then
        echo "did not fail: $*"
        exit 1
    fi
}

# A step fails that is not the last one: so does the story.
broken() {
    false
    true
}

filled() { yes "$1" | head -c 300000; }

# files_are_right COUNT: /mnt/f1 and the following ones are filled each with its number.
files_are_right() {
    n=$1
    while [ "$n" -gt 0 ]; do
        filled "$n" | cmp - "/mnt/f$n"
        n=$((n - 1))
    done
}

# A file system on a volume, by two connections; rooms of what was removed go back.
files() {
    attach nbd0 vm 2
    mkfs.ext4 -q /dev/nbd0
    # Else the kernel fills tables with zeros in the background.
    mount -o noinit_itable /dev/nbd0 /mnt
    for i in 1 2 3 4; do dd if=/dev/urandom "of=/mnt/f$i" bs=64k count=100 2>/dev/null; done
    (cd /mnt && sha256sum f1 f2 f3 f4 > sums)
    sync
    echo 3 > /proc/sys/vm/drop_caches
    (cd /mnt && sha256sum -c sums >/dev/null)
    rm /mnt/f2 /mnt/f3
    # Room is free when the journal says so.
    sync
    fstrim /mnt
    umount /mnt
    e2fsck -fn /dev/nbd0
    nbd-client -d /dev/nbd0
}

# Writes files and syncs each, until the host cuts the power.
write_until_cut() {
    attach nbd0 vm 1
    mkfs.ext4 -q /dev/nbd0
    mount /dev/nbd0 /mnt
    i=0
    while true; do
        i=$((i + 1))
        filled $i | dd "of=/mnt/f$i" bs=100k conv=fsync 2>/dev/null
        sync
        echo "synced $i"
    done
}

# What was synced before the cut is whole.
after_cut() {
    attach nbd0 vm 1
    e2fsck -p /dev/nbd0 || test $? -le 1
    mount /dev/nbd0 /mnt
    files_are_right "$(word count)"
    umount /mnt
    e2fsck -fn /dev/nbd0
}

# Raw disks of four servers as RAID-5; one of the servers goes away in the middle.
raid() {
    n=0
    for port in $(word ports | tr ',' ' '); do
        attach nbd$n "" 1 "$port"
        n=$((n + 1))
    done
    devices="/dev/nbd0 /dev/nbd1 /dev/nbd2 /dev/nbd3"
    mdadm --create /dev/md0 --run --level=5 --raid-devices=4 --assume-clean $devices
    mkfs.ext4 -q /dev/md0
    mount /dev/md0 /mnt
    for i in 1 2 3 4 5; do filled $i > /mnt/f$i; done
    sync
    echo "kill one now"
    while ! grep -q '(F)' /proc/mdstat; do
        filled again > /mnt/again
        sync
        sleep 0.2
    done
    echo 3 > /proc/sys/vm/drop_caches
    for i in 1 2 3 4 5; do filled $i | cmp - /mnt/f$i; done
    grep -q '\[UU_U\]' /proc/mdstat
    umount /mnt
    e2fsck -fn /dev/md0
    mdadm --stop /dev/md0
}

# A file system on a volume with channels to two servers; each is lost once under it.
channels() {
    # shellcheck disable=SC2046
    nuri_attach vm $(word ports | tr ',' ' ')
    [ "$(cat /tmp/device)" = /dev/nbd0 ]
    nuri volume attached | grep -q '^/dev/nbd0 *vm '
    fails nuri volume attach vm --server "10.0.2.2:$(word ports | cut -d, -f1)"
    grep -q 'is attached already' /tmp/said
    mkfs.ext4 -q /dev/nbd0
    mount /dev/nbd0 /mnt
    fails nuri volume detach vm
    grep -q 'mounted at /mnt' /tmp/said
    i=0
    for lost in first second; do
        before=$i
        while [ $i -lt $((before + 40)) ]; do
            i=$((i + 1))
            filled $i | dd "of=/mnt/f$i" bs=100k conv=fsync 2>/dev/null
            [ $i -ne $((before + 10)) ] || echo "lose the $lost now"
        done
        while ! grep -q 'is back' /tmp/keeper; do sleep 0.2; done
        : > /tmp/keeper
        echo "$lost is back"
    done
    one_hangs
    [ -z "$(dmesg | grep -i 'i/o error')" ]
    echo 3 > /proc/sys/vm/drop_caches
    files_are_right $i
    umount /mnt
    e2fsck -fn /dev/nbd0
    nuri volume detach vm
    nuri volume attached | grep -c nbd0 | grep -q 0
}

# One of the servers of channels() hangs: what was sent to it is sent elsewhere after 15 s; so is what
# the file system sent there meanwhile, for which the program waits too.
one_hangs() {
    echo "stop the first now"
    longest=0
    until grep -q "is lost" /tmp/keeper; do
        i=$((i + 1))
        began=$(hundredths)
        filled $i | dd "of=/mnt/f$i" bs=100k conv=fsync 2>/tmp/dd || { cat /tmp/dd; dmesg | tail -20; return 1; }
        took=$(($(hundredths) - began))
        [ $took -le $longest ] || longest=$took
    done
    echo "the first is left"
    echo "longest pause of one that hangs: $longest hundredths of a second"
    [ $longest -le 3300 ]
    while ! grep -q 'is back' /tmp/keeper; do sleep 0.2; done
}

# Since the start.
hundredths() { cut -d' ' -f1 /proc/uptime | tr -d .; }

# The disk of this machine is a volume. It moves to another emulator while it writes files, until it
# reads a line.
moves() {
    mkfs.ext4 -q /dev/vda2
    mount /dev/vda2 /mnt
    i=0
    while ! read -r -t 1 _; do
        i=$((i + 1))
        filled $i | dd "of=/mnt/f$i" bs=100k conv=fsync 2>/dev/null
        echo "wrote $i"
    done
    [ -z "$(dmesg | grep -i 'i/o error')" ]
    forget
    files_are_right $i
    umount /mnt
    e2fsck -fn /dev/vda2
}

# A volume that grows: who connects again sees it, and the file system follows.
grows() {
    attach nbd0 vm 1
    mkfs.ext4 -q /dev/nbd0
    small=$(cat /sys/block/nbd0/size)
    nbd-client -d /dev/nbd0
    echo "grow now"
    while true; do
        attach nbd0 vm 1
        [ "$(cat /sys/block/nbd0/size)" -eq "$small" ] || break
        nbd-client -d /dev/nbd0
        sleep 0.5
    done
    [ "$(cat /sys/block/nbd0/size)" -eq $((4 * small)) ]
    e2fsck -fp /dev/nbd0
    resize2fs /dev/nbd0
    mount /dev/nbd0 /mnt
    [ "$(df -m /mnt | tail -1 | awk '{ print $2 }')" -gt 200 ]
    umount /mnt
    e2fsck -fn /dev/nbd0
}

# nfs_mount DIRECTORY [OPTIONS]: by version 3, else as a person mounts it whose server may restart.
nfs_mount() {
    port=$(word port)
    options="vers=3,proto=tcp,nolock,${2:-hard,timeo=20},port=$port"
    options="$options,mountport=$port,mountproto=tcp"
    options="$options,addr=10.0.2.2,mountaddr=10.0.2.2,rsize=1048576,wsize=1048576"
    mkdir -p /nfs
    mount -i -t nfs -o "$options" "10.0.2.2:$1" /nfs
}

forget() { echo 3 > /proc/sys/vm/drop_caches; }

# What programs do with files, by the kernel's own client.
nfs_files() {
    nfs_mount /home
    cd /nfs
    dd if=/dev/urandom of=large bs=1M count=24 2>/dev/null
    sha256sum large > sum
    forget
    sha256sum -c sum >/dev/null
    echo "nfs_files: contents are right"
    nfs_names
    nfs_sizes
    echo "nfs_files: names and sizes are right"
    # Open, and without a name: it is read to its end.
    exec 5< large
    rm large
    [ "$(cat <&5 | sha256sum | cut -c1-64)" = "$(cut -c1-64 sum)" ]
    exec 5<&-
    # A program runs from there, mapped.
    cp /bin/busybox echo
    [ "$(./echo runs)" = runs ]
    nfs_many
    echo "nfs_files: many names are right"
    nfs_exercise
    [ "$(df -m /nfs | tail -1 | awk '{ print $2 }')" -gt 100 ]
    cd /
    umount /nfs
}

nfs_names() {
    echo one > log
    echo two >> log
    [ "$(tail -n 1 log)" = two ]
    echo new > other
    mv other log
    [ "$(cat log)" = new ]
    # Exclusively: the name must not be there.
    fails sh -C -c 'echo again > log'
    sh -C -c 'echo first > once'
    ln log hard
    ln -s log soft
    [ "$(cat soft)" = new ]
    [ "$(stat -c %h log)" = 2 ]
    mkfifo fifo
    [ -p fifo ]
    chmod 640 log
    chown 7:8 log
    [ "$(stat -c %a:%u:%g hard)" = 640:7:8 ]
    touch -d '2001-02-03 04:05:06' log
    [ "$(stat -c %Y hard)" = 981173106 ]
    mkdir dir
    echo inside > dir/file
    fails rmdir dir
    mv dir moved
    [ "$(cat moved/file)" = inside ]
    rm -r moved
    fails ls moved
}

nfs_sizes() {
    truncate -s 5000000000 sparse
    [ "$(stat -c %s sparse)" = 5000000000 ]
    echo end | dd of=sparse bs=1 seek=4999999990 conv=notrunc 2>/dev/null
    forget
    [ "$(tail -c 10 sparse | head -c 3)" = end ]
    truncate -s 3 log
    echo more >> log
    [ "$(cat log)" = newmore ]
}

nfs_many() {
    mkdir many
    i=0
    while [ $i -lt 3000 ]; do
        i=$((i + 1))
        : > many/$i
    done
    forget
    [ "$(ls many | wc -l)" = 3000 ]
    [ "$(ls -l many | wc -l)" = 3001 ]
    rm -r many
}

# Random reads, writes, maps and truncations of one file, checked by fsx. Version 3 has no calls for
# holes and copies.
nfs_exercise() {
    cat > /tmp/fsx.toml <<TOML
flen = 262144
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
TOML
    fsx -q -f /tmp/fsx.toml -N 1500 -S "$(word seed)" exercised
    rm exercised*
}

# What every system call answers, changes and refuses. Version 3 cannot pass two of them: a removed
# file that is open gets another name, and seconds have 32 bits.
nfs_posix() {
    for user in 'root:x:0:0' 'daemon:x:1:1' 'nobody:x:65534:65534'; do
        echo "$user::/:/bin/sh"
    done > /etc/passwd
    printf 'root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n' > /etc/group
    expected='expected_failures = ["unlink::open_file_not_freed", "utimensat::y2038"]'
    sed -i "/^naptime/a $expected" /pjdfstest.toml
    nfs_mount /home
    chmod 755 /nfs
    if ! pjdfstest -c /pjdfstest.toml -p /nfs > /tmp/said 2>&1; then
        grep -A3 FAILED /tmp/said
        return 1
    fi
    grep '^Summary' /tmp/said
    umount /nfs
}

# The server is killed in the middle of writes, and comes back: programs only wait.
nfs_server_returns() {
    nfs_mount /home
    cd /nfs
    for lost in first second; do
        dd if=/dev/urandom of=/tmp/data bs=1M count=16 2>/dev/null
        nfs_make_names "$lost" &
        maker=$!
        echo "lose the $lost now"
        for i in 1 2 3 4 5 6; do cp /tmp/data $lost; sleep 0.5; done
        sync
        wait $maker
        forget
        cmp /tmp/data $lost
        [ "$(ls | grep -c "$lost-")" = 40 ]
        echo "$lost is over"
    done
    cd /
    umount /nfs
}

# nfs_make_names WORD: forty directories, each made once although its server goes away. A server at an
# address of its own may be lost between a change and its answer; then the repeated call finds that
# the directory exists (docs/operate/nfs.md, "Limits").
nfs_make_names() {
    found=0
    for i in $(seq 40); do
        if ! mkdir "$1-$i" 2>/tmp/mkdir; then
            cat /tmp/mkdir
            grep -q 'File exists' /tmp/mkdir
            found=$((found + 1))
        fi
        sleep 0.2
    done
    [ $found -le 1 ]
}

# A directory with more names than fit into any answer, listed while it changes.
nfs_large() {
    nfs_mount /home
    [ "$(ls /nfs/large | wc -l)" = "$(word count)" ]
    forget
    # With attributes.
    [ "$(ls -l /nfs/large | grep -c '^-rw')" = "$(word count)" ]
    echo "remove some now"
    for _ in 1 2 3; do
        forget
        # Those that stay are all there, once each.
        [ "$(ls /nfs/large | grep stays | sort -u | wc -l)" = "$(word stay)" ]
        [ "$(ls /nfs/large | sort | uniq -d | wc -l)" = 0 ]
    done
    umount /nfs
}

# A soft mount: calls fail while the server is away, and it goes on when the server is back.
nfs_soft() {
    nfs_mount /home soft,timeo=10,retrans=2
    filled soft > /nfs/file
    sync
    echo "lose it now"
    while sleep 0.5; do
        forget
        cat /nfs/file >/dev/null 2>/tmp/said || break
    done
    cat /tmp/said
    grep -qiE 'I/O error|Input/output error|timed out' /tmp/said
    echo "it is away"
    for _ in $(seq 60); do
        if filled soft | cmp - /nfs/file 2>/dev/null; then break; fi
        sleep 0.5
    done
    filled soft | cmp - /nfs/file
    umount /nfs
}

# It is not exported any more while it is mounted: an error, and nothing hangs.
nfs_export_ends() {
    nfs_mount /home
    echo here > /nfs/file
    echo "end it now"
    while cat /nfs/file >/dev/null 2>/tmp/said; do forget; sleep 0.5; done
    grep -q Stale /tmp/said
    umount /nfs
}

# Large files over a slow wire, written durably and read from the server again.
nfs_wire() {
    address=$(word address)
    options="vers=3,proto=tcp,nolock,hard,port=2049,mountport=2049,mountproto=tcp"
    options="$options,addr=$address,mountaddr=$address,rsize=1048576,wsize=1048576"
    mkdir -p /nfs
    ip route add default via 10.0.2.2
    mount -i -t nfs -o "$options" "$address:/home" /nfs
    for run in $(seq "$(word runs)"); do
        echo "write $run begins"
        dd if=/dev/zero "of=/nfs/f$run" bs=1M "count=$(word mib)" conv=fsync 2>/dev/null
        echo "write $run ends"
        forget
        echo "read $run begins"
        dd "if=/nfs/f$run" of=/dev/null bs=1M 2>/dev/null
        echo "read $run ends"
    done
    umount /nfs
}
