//! What Nuri's programs have in common: they are installed together and find each other, and they
//! end quietly where nobody reads what they print.

use std::path::PathBuf;

/// A program that is installed beside the one that runs, else one on the `PATH`.
pub fn find(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(|own| own.parent()).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = beside.into_iter().chain(std::env::split_paths(&path));
    dirs.map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Makes a closed pipe an ordinary end, as in `nuri status | head -1`. Rust programs ignore
/// SIGPIPE, and `println!` would panic instead.
pub fn end_when_nobody_reads() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str().unwrap_or_default();
        if said.starts_with("failed printing to stdout") && said.contains("Broken pipe") {
            std::process::exit(0);
        }
        tell(panic);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_beside_this_one_and_on_the_path() {
        let own = std::env::current_exe().unwrap();
        let name = own.file_name().unwrap().to_str().unwrap();
        assert_eq!(find(name).unwrap(), own);
        assert!(find("sh").is_some());
        assert!(find("no-such-program").is_none());
    }
}
