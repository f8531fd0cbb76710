//! `nuri node run`.

use std::process::ExitCode;

use nuri_node::bootstrap::{self, NodeEnd, NodeOptions};

use crate::Failure;
use crate::cli::NodeRun;

/// Exit code of a command that would make something and was not told to.
pub(crate) const NEEDS_WORD: u8 = 2;

/// Runs a node until it is killed.
pub(crate) fn run(args: NodeRun) -> Result<ExitCode, Failure> {
    let options = NodeOptions {
        dir: args.dir,
        may_create: args.create,
        listen: args.listen,
        listener: nuri_io::daemon::given_listener(),
        join: args.join,
        token_file: args.token_file,
        targets: args.target,
        target_size: args.target_size,
        target_sizes: args.target_sizes,
        shape: args.shape,
        placement: args.placement,
        export_disks: args.export_disks,
        make_disks: Some(crate::disks::service),
    };
    match bootstrap::run(options)? {
        NodeEnd::Stopped => Ok(ExitCode::SUCCESS),
        NodeEnd::NeedsWord(words) => {
            tracing::error!("{words}");
            Ok(ExitCode::from(NEEDS_WORD))
        }
    }
}
