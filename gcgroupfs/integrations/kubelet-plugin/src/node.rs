//! The node: its cards, what pods have of them, and the terms that the daemon enforces. Joins what the
//! kubelet, the API server, the kernel and the daemon tell.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::activity::Activity;
use crate::cards::{Card, Claim, Resource, check, devices, limits};
use crate::daemon::{Daemon, Terms};
use crate::edits::{Edits, Templates};
use crate::kubelet::{self, Devices, Pod, PodSource, read_checkpoint};
use crate::policy;
use crate::processes;
use crate::report::Report;
use crate::warnings::{Refused, Warnings};

/// How long ids that were allocated count without an entry in the kubelet's checkpoint.
const PENDING: Duration = Duration::from_secs(30);

/// Ids that were allocated; the kubelet has not yet told for which pod.
#[derive(Debug)]
struct Pending {
    claim: Claim,
    since: Instant,
}

/// Paths and options.
#[derive(Debug)]
pub(crate) struct Setup {
    /// Directory of device plugins.
    pub(crate) directory: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) templates: Templates,
    pub(crate) pods: Option<PodSource>,
    /// Highest priority that a pod may ask for.
    pub(crate) highest_priority: u8,
    pub(crate) report: Option<PathBuf>,
}

#[derive(Debug)]
struct State {
    daemon: Daemon,
    cards: Vec<Card>,
    /// Claims that the kubelet has stored.
    stored: Vec<Claim>,
    pending: Vec<Pending>,
    activity: Activity,
    report: Report,
    /// Annotations that change nothing, as far as they have been told.
    warnings: Warnings,
    /// Why pods are not governed, once that was seen: nothing is offered until the plugin starts again.
    ungoverned: Option<String>,
}

/// The node.
#[derive(Debug)]
pub(crate) struct PluginNode {
    setup: Setup,
    state: Mutex<State>,
    devices: watch::Sender<Devices>,
}

impl PluginNode {
    /// Returns a node with these cards, of which nothing else is known yet.
    pub(crate) fn new(setup: Setup, cards: Vec<Card>) -> Self {
        let state = State {
            daemon: Daemon::new(&setup.socket),
            cards,
            stored: Vec::new(),
            pending: Vec::new(),
            activity: Activity::default(),
            report: Report::default(),
            warnings: Warnings::default(),
            ungoverned: None,
        };
        Self {
            setup,
            state: Mutex::new(state),
            devices: watch::Sender::default(),
        }
    }

    /// Returns the ids of both resources, now and at each change.
    pub(crate) fn devices(&self) -> watch::Receiver<Devices> {
        self.devices.subscribe()
    }

    /// Reads everything again, and makes the terms of all pods hold. Problems are logged when they change.
    pub(crate) async fn refresh(self: &Arc<Self>) {
        let pods = match &self.setup.pods {
            Some(source) => source.changed().await,
            None => None,
        };
        let node = Arc::clone(self);
        let warnings = match spawn_blocking(move || node.refresh_with(pods)).await {
            Ok(warnings) => warnings,
            Err(error) => return eprintln!("gcgroup-kubelet-plugin: {error}"),
        };
        let node = Arc::clone(self);
        // Apart, since a server that does not answer would hold up the next refresh.
        tokio::spawn(async move {
            let Some(source) = &node.setup.pods else { return };
            for (pod, refused) in warnings {
                eprintln!("gcgroup-kubelet-plugin: pod {}: {}", refused.0, refused.1);
                if let Err(error) = source.warn(&pod, &refused.1).await {
                    eprintln!("gcgroup-kubelet-plugin: {error:#}");
                    node.lock().warnings.untold(&refused);
                }
            }
        });
    }

    /// Returns the warnings that the pods' events are to have.
    fn refresh_with(&self, pods: Option<anyhow::Result<Vec<Pod>>>) -> Vec<(Pod, Refused)> {
        let mut state = self.lock();
        let state = &mut *state;
        let mut problems = Vec::new();
        match pods {
            Some(Ok(pods)) => state.activity.set_pods(Some(pods)),
            Some(Err(error)) => {
                problems.push(format!("{error:#}"));
                state.activity.set_pods(None);
            }
            None => {}
        }
        match state.daemon.cards() {
            Ok(cards) => {
                problems.extend(cards.iter().filter_map(xid_error));
                state.cards = cards;
            }
            Err(error) => {
                problems.push(format!("{error:#}"));
                for card in &mut state.cards {
                    card.is_healthy = false;
                }
            }
        }
        match state.daemon.take_in_strays() {
            Ok(strays) => {
                if let Some((pid, uid)) = strays.first() {
                    state.ungoverned.get_or_insert_with(|| no_rule(pid, uid));
                }
            }
            Err(error) => problems.push(format!("{error:#}")),
        }
        if let Some(reason) = &state.ungoverned {
            problems.push(reason.clone());
            state.report.note_missing_rule();
            for card in &mut state.cards {
                card.is_healthy = false;
            }
        }
        if let Err(error) = self.read_claims(state) {
            problems.push(format!("{error:#}"));
        }
        self.publish(state);
        let mut warnings = Vec::new();
        match self.enforce_all(state, &mut problems) {
            Ok(refused) => {
                let fresh = state.warnings.update(&refused, Instant::now()).into_iter();
                warnings.extend(fresh.filter_map(|it| Some((state.activity.pod(&it.0)?.clone(), it))));
            }
            Err(error) => problems.push(format!("{error:#}")),
        }
        let State {
            report,
            activity,
            stored,
            ..
        } = state;
        report.update(activity.pods(), stored);
        if let Some(file) = &self.setup.report
            && let Err(error) = report.write(file)
        {
            problems.push(format!("{error:#}"));
        }
        report.log(problems);
        warnings
    }

    /// Reads what the kubelet has stored, and forgets allocations that are stored by now.
    fn read_claims(&self, state: &mut State) -> anyhow::Result<()> {
        state.stored = read_checkpoint(&self.setup.directory)?;
        let uids = state.stored.iter().filter_map(|claim| claim.pod.as_deref());
        let uids: BTreeSet<&str> = uids.collect();
        let are_listed = uids.iter().all(|uid| state.activity.is_listed(uid));
        let running = if are_listed {
            BTreeSet::new()
        } else {
            processes::pods()
        };
        state.activity.update(&uids, &running);
        let stored = active(&state.stored, &state.activity);
        let is_stored = |pending: &Claim| {
            stored
                .iter()
                .any(|claim| claim.resource == pending.resource && claim.ids.is_superset(&pending.ids))
        };
        state
            .pending
            .retain(|pending| pending.since.elapsed() < PENDING && !is_stored(&pending.claim));
        Ok(())
    }

    /// Tells the kubelet the ids and their health, if they have changed.
    fn publish(&self, state: &State) {
        let claims = state.claims();
        let all = Resource::ALL.map(|resource| devices(&state.cards, &claims, resource));
        self.devices.send_if_modified(|last| {
            let has_changed = *last != all;
            *last = all;
            has_changed
        });
    }

    /// Makes the terms of all active pods hold, and removes the groups of the others. Returns which
    /// annotations of which pods change nothing, and why.
    fn enforce_all(
        &self,
        state: &mut State,
        problems: &mut Vec<String>,
    ) -> anyhow::Result<BTreeSet<Refused>> {
        let claims = active(&state.stored, &state.activity);
        let uids: BTreeSet<String> = claims.iter().filter_map(|claim| claim.pod.clone()).collect();
        let mut refused = BTreeSet::new();
        for uid in &uids {
            match self.enforce(state, uid) {
                Ok(reasons) => refused.extend(reasons.into_iter().map(|reason| (uid.clone(), reason))),
                Err(error) => problems.push(format!("pod {uid}: {error:#}")),
            }
        }
        state.daemon.retain(&uids)?;
        Ok(refused)
    }

    /// Makes the terms of one pod hold. Returns which annotations change nothing, and why.
    fn enforce(&self, state: &mut State, uid: &str) -> anyhow::Result<Vec<String>> {
        let own = |claim: &&Claim| claim.pod.as_deref() == Some(uid);
        let claims: Vec<&Claim> = state.stored.iter().filter(own).collect();
        let mut containers: BTreeMap<String, Vec<&Claim>> = BTreeMap::new();
        for claim in &claims {
            containers.entry(claim.container.clone()).or_default().push(claim);
        }
        let containers = containers.into_iter();
        let containers: BTreeMap<_, _> = containers.map(|(name, claims)| (name, limits(&claims))).collect();
        let limits = limits(&claims);
        let highest = self.setup.highest_priority;
        let pod = state.activity.pod(uid);
        let settings = pod.map(|pod| policy::settings(pod, containers.keys(), highest));
        let terms = Terms {
            limits,
            containers,
            settings: settings.unwrap_or_default(),
        };
        state.daemon.enforce(uid, &terms, &state.cards)
    }

    /// Checks and notes an allocation.
    fn allocate_now(&self, resource: Resource, ids: &[String]) -> anyhow::Result<Edits> {
        let mut state = self.lock();
        // A pod that has just ended, or begun, may not be known yet.
        self.read_claims(&mut state)?;
        let claims = state.claims();
        let cards = check(&state.cards, &claims, resource, ids)?;
        if let Some(reason) = &state.ungoverned {
            bail!("{reason}");
        }
        if let Some(card) = cards.iter().find(|card| !card.is_healthy) {
            bail!("card {} is unhealthy", card.uuid);
        }
        let edits = self.setup.templates.edits(&cards)?;
        let claim = Claim {
            pod: None,
            container: String::new(),
            resource,
            ids: ids.iter().cloned().collect(),
        };
        state.pending.push(Pending {
            claim,
            since: Instant::now(),
        });
        self.publish(&state);
        Ok(edits)
    }

    fn pre_start_with(&self, resource: Resource, ids: &BTreeSet<String>) -> anyhow::Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        self.read_claims(state)?;
        let uid = owner(&state.stored, &state.activity, resource, ids)?;
        if let Some(reason) = &state.ungoverned {
            bail!("{reason}");
        }
        let others = active(&state.stored, &state.activity);
        let others = others
            .into_iter()
            .filter(|claim| claim.pod.as_ref() != Some(&uid));
        let others: Vec<Claim> = others.cloned().collect();
        let ids: Vec<String> = ids.iter().cloned().collect();
        check(&state.cards, &others, resource, &ids)?;
        match self.enforce(state, &uid)?.first() {
            Some(refused) => bail!("{refused}"),
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns what active pods have, and what was allocated and is not stored yet.
    fn claims(&self) -> Vec<Claim> {
        let stored = active(&self.stored, &self.activity).into_iter();
        let pending = self.pending.iter().map(|pending| &pending.claim);
        stored.chain(pending).cloned().collect()
    }
}

/// Returns the report of a card's XID error.
fn xid_error(card: &Card) -> Option<String> {
    let (uuid, xid) = (&card.uuid, card.xid?);
    Some(format!(
        "card {uuid} has had XID error {xid}: it is unhealthy until the daemon is started again"
    ))
}

/// Returns the report of a process of a pod that was in no group.
fn no_rule(pid: &str, uid: &str) -> String {
    format!(
        "process {pid} of pod {uid} was in no group, and has been moved into its pod's: the daemon has no rule \
         for pods. Put share/kubelet-plugin/gcgroupfs.toml into /etc/gcgroupfs.toml, reload the daemon, and start \
         this plugin again; until then it offers nothing"
    )
}

/// Returns the claims of pods whose containers may run.
fn active<'a>(claims: &'a [Claim], activity: &Activity) -> Vec<&'a Claim> {
    let is_active = |claim: &&Claim| claim.pod.as_ref().is_some_and(|uid| activity.is_active(uid));
    claims.iter().filter(is_active).collect()
}

/// Returns the UID of the pod that has exactly these ids.
fn owner(
    claims: &[Claim],
    activity: &Activity,
    resource: Resource,
    ids: &BTreeSet<String>,
) -> anyhow::Result<String> {
    let has_them = |claim: &&&Claim| claim.resource == resource && claim.ids == *ids;
    let active = active(claims, activity);
    let owners = active
        .iter()
        .filter(has_them)
        .filter_map(|claim| claim.pod.clone());
    let owners: BTreeSet<String> = owners.collect();
    match owners.len() {
        0 => bail!("the kubelet has stored no pod with these ids"),
        1 => owners.into_iter().next().context("one owner"),
        count => bail!("{count} pods have these ids"),
    }
}

impl kubelet::Node for PluginNode {
    async fn allocate(self: Arc<Self>, resource: Resource, ids: Vec<String>) -> anyhow::Result<Edits> {
        spawn_blocking(move || self.allocate_now(resource, &ids)).await?
    }

    async fn pre_start(self: Arc<Self>, resource: Resource, ids: Vec<String>) -> anyhow::Result<()> {
        // The pod is newer than the last list; without a list its limits hold all the same.
        let pods = match &self.setup.pods {
            Some(source) => Some(source.pods().await),
            None => None,
        };
        spawn_blocking(move || {
            if let Some(Ok(pods)) = pods {
                self.lock().activity.set_pods(Some(pods));
            }
            self.pre_start_with(resource, &ids.into_iter().collect())
        })
        .await?
    }
}
