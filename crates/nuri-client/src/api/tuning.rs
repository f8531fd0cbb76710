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
        let (links, cluster, session) =
            (self.links.clone(), self.cluster.clone(), self.session.clone());
        let look = move || links.look(&cluster, || session.stopping());
        self.links.begin(|| self.threads.start(look)).map_err(|_| Status::NOMEM)
    }

    /// What the last look at the links found, and whether one is under way.
    pub fn links(&self) -> LinksView {
        self.links.view()
    }

    /// How bulk data moves.
    pub fn flow(&self) -> FlowView {
        self.data.flow().view()
    }

    /// Leaves all of it to the mount, but for what is said here.
    pub fn force_flow(&self, forced: Forced) {
        self.budget.limit_to(forced.write_behind.unwrap_or(WRITE_BEHIND));
        self.data.flow().force(forced);
    }
}
