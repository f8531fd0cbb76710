//! The client's API: how a mount moves bulk data. A front end may read the settings, and force some
//! of them.

use nuri_proto::Status;
use nuri_volume::transfer::{FlowView, Forced, LinksView, WRITE_BEHIND};

use crate::client::Client;

impl Client {
    /// Begins a measurement of the links to the nodes, unless one is under way.
    ///
    /// # Errors
    /// `NOMEM` where there is no thread for it.
    pub fn look_at_links(&self) -> Result<(), Status> {
        let (links, cluster, session) =
            (self.links.clone(), self.cluster.clone(), self.session.clone());
        let look = move || links.look(&cluster, || session.stopping());
        self.links.begin(|| self.threads.start(look)).map_err(|_| Status::NOMEM)
    }

    /// The result of the last measurement of the links, and whether one is under way.
    pub fn links(&self) -> LinksView {
        self.links.view()
    }

    /// How the mount moves bulk data.
    pub fn flow(&self) -> FlowView {
        self.data.flow().view()
    }

    /// Forces the given settings, and leaves all others to the mount.
    pub fn force_flow(&self, forced: Forced) {
        self.budget.limit_to(forced.write_behind.unwrap_or(WRITE_BEHIND));
        self.data.flow().force(forced);
    }
}
