//! How a mount moves bulk data: what a front end may see of it, and what it may force.

use nuri_proto::Status;
use nuri_volume::transfer::{FlowView, Forced, LinksView, WRITE_BEHIND};

use crate::client::Client;

impl Client {
    /// Begins a look at the links to the nodes, unless one is under way.
    ///
    /// # Errors
    /// `NOMEM` where there is no thread for it.
    pub fn look_at_links(&self) -> Result<(), Status> {
        let shared = self.shared.clone();
        let look = move || shared.links.look(&shared.cluster, || shared.session.stopping());
        self.shared.links.begin(|| self.shared.threads.start(look)).map_err(|_| Status::NOMEM)
    }

    /// What the last look at the links found, and whether one is under way.
    pub fn links(&self) -> LinksView {
        self.shared.links.view()
    }

    /// How bulk data moves.
    pub fn flow(&self) -> FlowView {
        self.shared.data.flow().view()
    }

    /// Leaves all of it to the mount, but for what is said here.
    pub fn force_flow(&self, forced: Forced) {
        self.shared.pipeline.budget.limit_to(forced.write_behind.unwrap_or(WRITE_BEHIND));
        self.shared.data.flow().force(forced);
    }
}
