//! What a guest boots: Debian's kernel for clouds, and a file system in memory with busybox, a few
//! programs of this machine and the modules that they need.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::shell::{script, target};

const SETUP: Duration = Duration::from_secs(600);
/// Programs of Debian that the guest gets, with their libraries.
const PROGRAMS: &[&str] = &["mkfs.ext4", "e2fsck", "resize2fs", "nbd-client", "mdadm", "fsx"];
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
    "nbd",
    "raid456",
    "nfsv3",
];

/// Kernel and file system of a guest.
pub(super) struct Image {
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
}

/// Fetches the kernel once, and packs the file system. `scripts/setup --test` installed the rest.
pub(super) fn make(nuri: &Path) -> Result<Image, String> {
    let dir = target().join("guest");
    std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    script(&recipe(&dir.display().to_string(), &nuri.display().to_string()), SETUP)?;
    Ok(Image { kernel: dir.join("vmlinuz"), initrd: dir.join("initrd") })
}

fn recipe(dir: &str, nuri: &str) -> String {
    let stories = env!("CARGO_MANIFEST_DIR");
    let (modules, programs) = (MODULES.join(" "), PROGRAMS.join(" "));
    format!(
        "cd {dir}
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
         version=$(ls package/lib/modules)
         if [ \"$(cat root/made-of 2>/dev/null)\" != \"{modules} {programs}\" ]; then
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
             for program in {programs}; do
                 path=$(PATH=/sbin:/usr/sbin:/bin:/usr/bin:$own command -v $program)
                 cp $path new/bin/
                 ldd $path | grep -o '/[^ ]*' | while read library; do
                     mkdir -p new$(dirname $library)
                     cp -n $library new$library
                 done
             done
             echo {modules} > new/modules
             echo {modules} {programs} > new/made-of
             mv new root
         fi
         strip -o root/bin/nuri {nuri}
         ldd {nuri} | grep -o '/[^ ]*' | while read library; do
             mkdir -p root$(dirname $library)
             cp -n $library root$library
         done
         cp {stories}/src/guest/stories.sh root/stories
         cp {stories}/src/guest/init.sh root/init
         chmod +x root/init
         (cd root; find . | cpio -o -H newc --quiet | gzip -1) > initrd"
    )
}
