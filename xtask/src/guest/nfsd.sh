# The kernel's own NFS server on two mounts of a space of other machines, and the kernel's client.

nfsd_spaces() {
    ip route add default via 10.0.2.2
    (umask 077; word token > /token)
    for letter in a b; do nfsd_space $letter; done
}

# nfsd_space LETTER: a mount.
nfsd_space() {
    mkdir -p "/space/$1"
    nuri fs mount "$(word first)" "/space/$1" --token-file /token
}

nfsd_begin() {
    mkdir -p /run/rpcbind /var/lib/nfs/v4recovery
    ln -s /run /var/run
    touch /var/lib/nfs/etab /var/lib/nfs/rmtab
    echo 'root:x:0:0::/:/bin/sh' > /etc/passwd
    echo '_rpc:x:100:0::/run/rpcbind:/bin/false' >> /etc/passwd
    for service in 'sunrpc 111/tcp' 'sunrpc 111/udp' 'nfs 2049/tcp' 'nfs 2049/udp'; do
        echo "$service"
    done > /etc/services
    printf 'tcp 6 TCP\nudp 17 UDP\n' > /etc/protocols
    rpcbind
    mount -t nfsd nfsd /proc/fs/nfsd
    echo '/space/a *(rw,fsid=1,no_root_squash,no_subtree_check)' > /etc/exports
    echo '/space/b *(rw,fsid=2,no_root_squash,no_subtree_check)' >> /etc/exports
    # A delegation is a lease of this kernel: no change on another machine ends it.
    echo 0 > /proc/sys/fs/leases-enable
    nfsd_serve
    rpc.mountd -p 20048
}

nfsd_serve() {
    exportfs -a
    rpc.nfsd -G 10 -L 10 4
}

nfsd_stop() {
    rpc.nfsd 0
    exportfs -ua
    exportfs -f
}

# nfsd_mount VERSION LETTER: the mount /space/LETTER as clients see it, at /nfs/LETTER.
nfsd_mount() {
    options="vers=$1,proto=tcp,port=2049,hard,timeo=20,actimeo=1,addr=127.0.0.1"
    case $1 in
        3) options="$options,nolock,mountport=20048,mountproto=tcp,mountaddr=127.0.0.1" ;;
        4*) options="$options,clientaddr=127.0.0.1" ;;
    esac
    mkdir -p "/nfs/$2"
    mount -i -t nfs -o "$options" "127.0.0.1:/space/$2" "/nfs/$2"
}

nfsd() {
    nfsd_spaces
    nfsd_begin
    for version in 3 4.2; do
        nfsd_mount $version a
        mkdir /nfs/a/v$version
        cd /nfs/a/v$version
        nfs_names
        nfs_sizes
        nfs_exercise
        cd /
        nfsd_changes_are_seen
        umount /nfs/a
        echo "nfsd: version $version is right"
    done
    nfsd_mount 4.2 a
    nfsd_mount 4.2 b
    nfsd_locks
    nfsd_restarts
    umount /nfs/a
    umount /nfs/b
    nfsd_ports
    nuri fs umount /space/a
    nuri fs umount /space/b
}

# The space's own servers leave the place at rpcbind to another server that lives, and take it where
# that one is gone.
nfsd_ports() {
    where="--at $(word first) --token-file /token"
    # shellcheck disable=SC2086
    nuri nfs export add /v3 '127.0.0.1(rw,no_root_squash)' $where
    # The kernel's server.
    ports_serve 2050
    grep -q 'no ports of this server: another server is registered, at 127.0.0.1:2049' /tmp/serve
    ports_stop
    nfsd_stop
    kill "$(pidof rpc.mountd)"
    ports_serve 2050
    fails grep 'no ports of this server' /tmp/serve
    first=$server
    ports_serve 2051
    grep -q 'no ports of this server: another server is registered, at 127.0.0.1:2050' /tmp/serve
    ports_stop
    kill -9 $first
    ports_serve 2051
    fails grep 'no ports of this server' /tmp/serve
    ports_stop
    echo "nfsd: ports are right"
}

# ports_serve PORT: a server of the space, until it serves and had time for rpcbind.
ports_serve() {
    # shellcheck disable=SC2086
    nuri nfs serve --listen "127.0.0.1:$1" $where 2>/tmp/serve &
    server=$!
    for _ in $(seq 300); do
        if grep -q "serves at" /tmp/serve; then sleep 1; return; fi
        sleep 0.1
    done
    cat /tmp/serve
    return 1
}

ports_stop() {
    kill $server
    wait $server
}

# What a client wrote and closed is on the other mount, and what is written there is here at the
# next open.
nfsd_changes_are_seen() {
    for i in 1 2; do
        filled "here $i" > /nfs/a/seen
        filled "here $i" | cmp - /space/b/seen
        filled "there $i" > /space/b/seen
        # Attributes are trusted for so long.
        sleep 2
        filled "there $i" | cmp - /nfs/a/seen
    done
    mv /space/b/seen /space/b/moved
    sleep 2
    [ -e /nfs/a/moved ]
    fails cat /nfs/a/seen
    rm /nfs/a/moved
    fails cat /space/b/moved
}

# Locks of clients of two servers, each on a mount of its own.
nfsd_locks() {
    : > /nfs/a/lock
    flock /nfs/a/lock sh -c 'echo held > /tmp/held; while [ ! -e /tmp/let-go ]; do sleep 0.1; done' &
    holder=$!
    for _ in $(seq 100); do [ ! -e /tmp/held ] || break; sleep 0.1; done
    [ -e /tmp/held ]
    fails flock -n /nfs/b/lock true
    : > /tmp/let-go
    wait $holder
    flock -n /nfs/b/lock true
    echo "nfsd: locks are right"
}

# Mount and server end and come back; a client goes on with the file that it has open. What was
# removed meanwhile is stale.
nfsd_restarts() {
    filled stays > /nfs/a/stays
    filled goes > /nfs/a/goes
    exec 5< /nfs/a/stays
    exec 6< /nfs/a/goes
    nfsd_stop
    nuri fs umount /space/a
    rm /space/b/goes
    nfsd_space a
    nfsd_serve
    forget
    [ "$(cat <&5 | sha256sum)" = "$(filled stays | sha256sum)" ]
    fails cat <&6
    grep -q Stale /tmp/said
    exec 5<&-
    exec 6<&-
    echo more >> /nfs/a/stays
    [ "$(tail -n 1 /space/b/stays)" = more ]
    echo "nfsd: restarts are right"
}
