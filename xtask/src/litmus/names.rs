//! Races for names.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Ground, said};

const NAMES: u64 = 40;

/// Who did it, of each name; others were told that it is done.
fn winners(
    ground: &Ground,
    refusal: ErrorKind,
    act: impl Fn(usize, &Path, u64) -> std::io::Result<()> + Sync,
) -> Result<(), String> {
    let done = ground.together(ground.dirs.len(), |mount, dir| {
        let one = |number| match act(mount, dir, number) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == refusal => Ok(false),
            Err(e) => Err(format!("name {number}: {e}")),
        };
        (0..NAMES).map(one).collect::<Result<Vec<_>, _>>()
    })?;
    for number in 0..NAMES as usize {
        let count = done.iter().filter(|all| all[number]).count();
        if count != 1 {
            return Err(format!("name {number}: {count} mounts did it"));
        }
    }
    Ok(())
}

/// Exclusive creation, directories, links and symbolic links: one makes it.
pub(super) fn makers(ground: &Ground) -> Result<(), String> {
    let kind = ground.rng(0).below(5);
    File::create(ground.path(0, "source")).map_err(said("the source"))?;
    winners(ground, ErrorKind::AlreadyExists, |mount, dir, number| {
        let name = dir.join(format!("n{number}"));
        match kind {
            0 => OpenOptions::new().write(true).create_new(true).open(name).map(drop),
            1 => std::fs::create_dir(name),
            2 => std::fs::hard_link(dir.join("source"), name),
            3 => std::os::unix::fs::symlink(format!("by {mount}"), name),
            _ => {
                let own = dir.join(format!("own{mount}-{number}"));
                File::create(&own)?;
                let flags = rustix::fs::RenameFlags::NOREPLACE;
                let (from, to) = (rustix::fs::CWD, rustix::fs::CWD);
                Ok(rustix::fs::renameat_with(from, &own, to, &name, flags)?)
            }
        }
    })
}

/// Files, directories and sources of a rename: one takes it away.
pub(super) fn removers(ground: &Ground) -> Result<(), String> {
    let kind = ground.rng(0).below(3);
    for number in 0..NAMES {
        let name = ground.path(number as usize % ground.dirs.len(), &format!("n{number}"));
        let made = if kind == 1 { std::fs::create_dir(name) } else { File::create(name).map(drop) };
        made.map_err(said("a name"))?;
    }
    winners(ground, ErrorKind::NotFound, |mount, dir, number| {
        let name = dir.join(format!("n{number}"));
        match kind {
            0 => std::fs::remove_file(name),
            1 => std::fs::remove_dir(name),
            _ => std::fs::rename(name, dir.join(format!("own{mount}-{number}"))),
        }
    })
}

/// All mounts rename files of their own over one name: it is always there, and whole.
pub(super) fn onto_one_name(ground: &Ground) -> Result<(), String> {
    let text = |mount: usize, number: u64| format!("{mount}-{number};").repeat(300);
    std::fs::write(ground.path(0, "name"), text(0, 0)).map_err(said("the name"))?;
    ground.together(ground.dirs.len(), |mount, dir| {
        for number in 0..NAMES {
            let own = dir.join(format!("own{mount}"));
            std::fs::write(&own, text(mount, number)).map_err(said("an own file"))?;
            std::fs::rename(&own, dir.join("name")).map_err(said("rename"))?;
            if own.exists() {
                return Err(format!("the source of rename {number} is still there"));
            }
            let found = std::fs::read_to_string(dir.join("name")).map_err(said("the name"))?;
            let first = found.split(';').next().unwrap_or_default();
            if found != format!("{first};").repeat(300) {
                return Err(format!("the file under the name is not whole: {first:?}"));
            }
        }
        Ok(())
    })?;
    let left = std::fs::read_dir(&ground.dirs[1]).map_err(said("the directory"))?.count();
    if left == 1 { Ok(()) } else { Err(format!("{left} names are left, not 1")) }
}

/// Each mount moves a thing of its own between two directories, half of them the other way round,
/// among them directories: nobody waits for ever, and all are there at the end.
pub(super) fn crossed_renames(ground: &Ground) -> Result<(), String> {
    for name in ["left", "right"] {
        std::fs::create_dir(ground.path(0, name)).map_err(said(name))?;
    }
    let kinds = ground.rng(0).below(4);
    ground.together(ground.dirs.len(), |mount, dir| {
        let name = format!("thing{mount}");
        let ends = [dir.join("left").join(&name), dir.join("right").join(&name)];
        let (from, to) = (&ends[mount % 2], &ends[1 - mount % 2]);
        let made = match kinds >> (mount / 2) & 1 {
            0 => File::create(from).map(drop),
            _ => std::fs::create_dir(from),
        };
        made.map_err(said(&name))?;
        for _ in 0..NAMES {
            std::fs::rename(from, to).map_err(said("there"))?;
            std::fs::rename(to, from).map_err(said("back"))?;
        }
        Ok(())
    })?;
    let count = |mount, name| Ok(std::fs::read_dir(ground.path(mount, name))?.count());
    for mount in 0..ground.dirs.len() {
        let both = count(mount, "left").and_then(|l| Ok((l, count(mount, "right")?)));
        let both = both.map_err(said("counting"))?;
        let half = ground.dirs.len() / 2;
        if both != (half, half) {
            return Err(format!("mount {mount} finds {both:?}, not {half} in each"));
        }
    }
    Ok(())
}

/// Names that are there all the time are listed once, whatever comes and goes beside them.
pub(super) fn listing(ground: &Ground) -> Result<(), String> {
    let stays = 150;
    for number in 0..stays {
        File::create(ground.path(0, &format!("stays{number}"))).map_err(said("a file"))?;
    }
    let changing = AtomicUsize::new(2);
    ground.together(ground.dirs.len(), |mount, dir| {
        if mount < 2 {
            let come_and_go = (0..NAMES * 3).try_for_each(|number| {
                File::create(dir.join(format!("temp{mount}-{number}")))?;
                match number.checked_sub(5) {
                    Some(old) => std::fs::remove_file(dir.join(format!("temp{mount}-{old}"))),
                    None => Ok(()),
                }
            });
            changing.fetch_sub(1, Ordering::SeqCst);
            return come_and_go.map_err(said("a name that goes"));
        }
        while changing.load(Ordering::SeqCst) > 0 {
            let mut seen: HashMap<String, u64> = HashMap::new();
            for entry in std::fs::read_dir(dir).map_err(said("the directory"))? {
                let name = entry.map_err(said("an entry"))?.file_name();
                *seen.entry(name.to_string_lossy().into_owned()).or_default() += 1;
            }
            if let Some((name, count)) = seen.iter().find(|(_, count)| **count > 1) {
                return Err(format!("{name} is listed {count} times"));
            }
            let missing = (0..stays).find(|n| !seen.contains_key(&format!("stays{n}")));
            if let Some(number) = missing {
                return Err(format!("stays{number} is not listed, {} names are", seen.len()));
            }
        }
        Ok(())
    })?;
    Ok(())
}
