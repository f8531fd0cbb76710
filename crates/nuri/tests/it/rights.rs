//! What changes of a file take away: set-user-id, set-group-id, capabilities; by whom.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{Space, run};

const PROGRAM: &str = include_str!("rights.py");

fn outcomes(dir: &Path) -> Vec<String> {
    std::fs::create_dir(dir).unwrap();
    std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
    let said = run("python3", &["-c", PROGRAM, &dir.display().to_string()]);
    said.lines().map(str::to_owned).collect()
}

/// On the disk under the test's directory, and on a mount.
#[test]
fn privileges_go_as_on_a_disk() {
    let space = Space::up(&[]);
    let top = space.path("");
    std::fs::set_permissions(&top, PermissionsExt::from_mode(0o755)).unwrap();
    let disk = outcomes(&space.path("disk"));
    let mount = outcomes(&space.mnt().join("d"));
    assert_eq!(disk.len(), mount.len());
    let differ = |(a, b): (&String, &String)| (a != b).then(|| format!("{b}, not {a}"));
    let wrong: Vec<_> = disk.iter().zip(&mount).filter_map(differ).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    space.down_clean();
}
