//! What a guest boots: Debian's kernel for clouds, and a file system in memory with busybox, a few
//! programs of this machine and the modules that they need.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::shell::{root, script, target};

const SETUP: Duration = Duration::from_secs(600);
/// Programs of Debian that the guest gets, with their libraries.
const PROGRAMS: &[&str] =
    &["mkfs.ext4", "e2fsck", "resize2fs", "nbd-client", "mdadm", "fsx", "pjdfstest", "flock"];
/// The kernel's NFS server, whose programs and libraries this machine does not get: installed they
/// would start it here.
const NFSD_PACKAGES: &[&str] = &[
    "nfs-kernel-server",
    "rpcbind",
    "libtirpc3",
    "libtirpc-common",
    "libevent-core-2.1-7",
    "libwrap0",
    "libnfsidmap1",
    "libkeyutils1",
    "libsqlite3-0",
];
const NFSD_PROGRAMS: &[&str] = &["exportfs", "rpc.mountd", "rpc.nfsd", "rpcbind"];
/// In the order in which they are loaded.
const MODULES: &[&str] = &[
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_blk",
    "nbd",
    "raid456",
    "nfsv3",
    "nfsv4",
    "nfsd",
    "fuse",
];

/// Kernel and file system of a guest, which is made anew by each run.
pub(super) struct Image {
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.initrd);
    }
}

/// Fetches the kernel once, and packs the file system. `scripts/setup --test` installed the rest.
pub(super) fn make(nuri: &Path) -> Result<Image, String> {
    let dir = target().join("guest");
    std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    script(&recipe(&dir.display().to_string(), &nuri.display().to_string()), SETUP)?;
    let initrd = dir.join(format!("initrd{}", std::process::id()));
    Ok(Image { kernel: dir.join("vmlinuz"), initrd })
}

/// The packages of the NFS server, unpacked once.
fn unpack_nfsd() -> String {
    let packages = NFSD_PACKAGES.join(" ");
    format!(
        "if [ ! -e nfsd ]; then
             rm -rf nfsd.new
             apt-get download -qq {packages} 2>/dev/null
             for name in {packages}; do
                 dpkg -x ${{name}}_*.deb nfsd.new
                 rm ${{name}}_*.deb
             done
             mv nfsd.new nfsd
         fi"
    )
}

fn recipe(dir: &str, nuri: &str) -> String {
    let stories = env!("CARGO_MANIFEST_DIR");
    let scripts = root().join("scripts").display().to_string();
    let (modules, programs) = (MODULES.join(" "), PROGRAMS.join(" "));
    let (unpack_nfsd, nfsd_programs) = (unpack_nfsd(), NFSD_PROGRAMS.join(" "));
    format!(
        "cd {dir}
         # Another run may make it too.
         exec 9> lock
         flock 9
         own=${{CARGO_HOME:-$HOME/.cargo}}/bin
         package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: //p')
         if [ ! -e $package ]; then
             rm -rf package root
             apt-get download -qq $package 2>/dev/null
             dpkg -x $package*.deb package
             rm $package*.deb
             cp package/boot/vmlinuz-* vmlinuz
             touch $package
         fi
         {unpack_nfsd}
         {scripts}/pjdfstest
         version=$(ls package/lib/modules)
         made_of=\"{modules} {programs} {nfsd_programs}\"
         if [ \"$(cat root/made-of 2>/dev/null)\" != \"$made_of\" ]; then
             rm -rf root new
             depmod -b package $version
             mkdir -p new/bin new/proc new/sys new/dev new/tmp new/lib/modules/$version
             cp package/lib/modules/$version/modules.* new/lib/modules/$version/
             for module in {modules}; do
                 modprobe -d package -S $version --show-depends $module
             done | sed -n 's/^insmod //p' | sort -u | while read path _; do
                 to=new/lib/modules/${{path#*lib/modules/}}
                 mkdir -p $(dirname $to)
                 cp $path $to
             done
             cp /bin/busybox new/bin/
             of_nfsd=$(find $PWD/nfsd -name '*.so.*' -exec dirname {{}} \\; | sort -u)
             export LD_LIBRARY_PATH=$(echo $of_nfsd | tr ' ' :)
             mkdir -p new/etc
             cp nfsd/etc/netconfig new/etc/
             for program in {programs} {nfsd_programs}; do
                 path=$(PATH=nfsd/sbin:nfsd/usr/sbin:/sbin:/usr/sbin:/bin:/usr/bin:$own \\
                     command -v $program)
                 cp $path new/bin/
                 ldd $path | grep -o '/[^ ]*' | while read library; do
                     to=new${{library#$PWD/nfsd}}
                     mkdir -p $(dirname $to)
                     cp -n $library $to
                 done
             done
             unset LD_LIBRARY_PATH
             echo {modules} > new/modules
             echo $made_of > new/made-of
             mv new root
         fi
         strip -o root/bin/nuri {nuri}
         ldd {nuri} | grep -o '/[^ ]*' | while read library; do
             mkdir -p root$(dirname $library)
             cp -n $library root$library
         done
         cat {stories}/src/guest/stories.sh {stories}/src/guest/nfsd.sh > root/stories
         cp {stories}/src/guest/init.sh root/init
         cp {scripts}/apps/pjdfstest.toml root/
         chmod +x root/init
         (cd root; find . | cpio -o -H newc --quiet | gzip -1) > initrd{own}",
        own = std::process::id()
    )
}
