//! How a server in the foreground ends: in order at the first signal, at once at the next.

use signal_hook::iterator::Signals;

/// Waits for a signal. From then on another one ends the process: where the space does not answer,
/// an end in order takes long.
pub(super) fn wait_for_end(mut signals: Signals, what: &'static str) {
    signals.forever().next();
    tracing::info!("{what}: ends: what clients had begun is finished first");
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            tracing::warn!("{what}: a second signal ends it at once: what was begun may be lost");
            std::process::exit(1);
        }
    });
}
