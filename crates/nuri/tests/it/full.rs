//! A full space: an error at the call or at the sync, nothing torn, space comes back.

use std::fs;
use std::io::Write;
use std::time::Duration;

use crate::support::{Space, wait};

fn used(space: &Space) -> (u64, u64) {
    let s = rustix::fs::statvfs(space.mnt()).unwrap();
    ((s.f_blocks - s.f_bfree) * s.f_frsize, s.f_blocks * s.f_frsize)
}

#[test]
fn a_full_space_says_so_and_recovers() {
    let space = Space::up(&["--targets", "2", "--target-size", "48M"]);
    let m = space.mnt();
    fs::write(m.join("keep"), vec![1; 3 << 20]).unwrap();
    fs::File::open(m.join("keep")).unwrap().sync_all().unwrap();
    let mut file = fs::File::create(m.join("fill")).unwrap();
    let mut failed = None;
    for _ in 0..400 {
        let wrote = file.write_all(&[2; 1 << 20]).and_then(|()| file.sync_data());
        if let Err(error) = wrote {
            failed = Some(error);
            break;
        }
    }
    assert_eq!(failed.unwrap().raw_os_error(), Some(28));
    wait("df sees the full space", Duration::from_secs(5), || {
        let (used, size) = used(&space);
        used * 100 > size * 85
    });
    assert_eq!(fs::read(m.join("keep")).unwrap(), vec![1; 3 << 20]);
    drop(file);
    fs::remove_file(m.join("fill")).unwrap();
    wait("the space comes back", Duration::from_secs(10), || {
        let (used, size) = used(&space);
        used < (3 << 20) + size / 100
    });
    let again = vec![3; 30 << 20];
    fs::write(m.join("again"), &again).unwrap();
    fs::File::open(m.join("again")).unwrap().sync_all().unwrap();
    assert_eq!(fs::read(m.join("again")).unwrap(), again);
    space.down_clean();
}
