//! Which units of memory and which whole cards are in use: decisions from values, without the kubelet or the
//! daemon.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{anyhow, bail, ensure};

/// Bytes of one unit of `gcgroup.io/gpu-memory`.
pub(crate) const UNIT: u64 = 1 << 30;

/// Resource that the plugin offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resource {
    /// 1 GiB of a card's memory. The id is the card's UUID, a dot and a number.
    Memory,
    /// A whole card. The id is its UUID.
    Card,
}

impl Resource {
    pub(crate) const ALL: [Self; 2] = [Self::Memory, Self::Card];

    /// Returns the name in a container's limits.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "gcgroup.io/gpu-memory",
            Self::Card => "gcgroup.io/gpu",
        }
    }

    /// Returns the resource with a name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resource| resource.name() == name)
    }

    /// Returns the UUID of the card that an id names.
    ///
    /// # Errors
    /// The id is not of this resource.
    pub(crate) fn card(self, id: &str) -> anyhow::Result<&str> {
        let uuid = match self {
            Self::Card => Some(id),
            Self::Memory => id
                .rsplit_once('.')
                .filter(|(_, number)| number.parse::<u64>().is_ok())
                .map(|(uuid, _)| uuid),
        };
        uuid.filter(|uuid| !uuid.is_empty())
            .ok_or_else(|| anyhow!("{id:?} is not an id of {}", self.name()))
    }
}

/// GPU, or MIG instance, as the daemon lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Card {
    /// Name of its directories in the daemon's tree.
    pub(crate) index: String,
    pub(crate) uuid: String,
    pub(crate) pci: String,
    /// Memory, bytes.
    pub(crate) total: u64,
    pub(crate) is_healthy: bool,
    /// Its last critical XID error.
    pub(crate) xid: Option<u64>,
}

impl Card {
    fn unit_ids(&self) -> impl Iterator<Item = String> {
        (0..self.total / UNIT).map(|number| format!("{}.{number}", self.uuid))
    }
}

/// Device ids of one resource that a container of a pod has, or is about to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    /// UID of the pod; `None` until the kubelet has stored it.
    pub(crate) pod: Option<String>,
    pub(crate) container: String,
    pub(crate) resource: Resource,
    pub(crate) ids: BTreeSet<String>,
}

impl Claim {
    /// Returns the UUIDs of its cards. Ids of another form have none.
    fn cards(&self) -> impl Iterator<Item = &str> {
        self.ids.iter().filter_map(|id| self.resource.card(id).ok())
    }
}

/// Use of a card by claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Units,
    Whole,
}

/// Returns how each card is used. Whole wins where claims contradict each other.
pub(crate) fn uses<'a>(claims: impl IntoIterator<Item = &'a Claim>) -> BTreeMap<&'a str, Use> {
    let mut uses = BTreeMap::new();
    for claim in claims {
        for uuid in claim.cards() {
            match claim.resource {
                Resource::Card => _ = uses.insert(uuid, Use::Whole),
                Resource::Memory => _ = uses.entry(uuid).or_insert(Use::Units),
            }
        }
    }
    uses
}

/// Returns the ids of a resource, with their health: an id is healthy if its card is, and if the card is not
/// given out as the other resource.
pub(crate) fn devices(cards: &[Card], claims: &[Claim], resource: Resource) -> Vec<(String, bool)> {
    let uses = uses(claims);
    let mut devices = Vec::new();
    for card in cards {
        let used = uses.get(card.uuid.as_str());
        match resource {
            Resource::Memory => {
                let is_healthy = card.is_healthy && used != Some(&Use::Whole);
                devices.extend(card.unit_ids().map(|id| (id, is_healthy)));
            }
            Resource::Card => {
                let is_healthy = card.is_healthy && used != Some(&Use::Units);
                devices.push((card.uuid.clone(), is_healthy));
            }
        }
    }
    devices
}

/// Chooses `size` ids for a container: units of one card, that with the fewest free units among those that
/// have enough. Returns no ids where no card has enough.
pub(crate) fn preferred(
    resource: Resource,
    available: &[String],
    must_include: &[String],
    size: usize,
) -> Vec<String> {
    let mut chosen: Vec<String> = must_include.to_vec();
    let free = available.iter().filter(|id| !must_include.contains(id));
    let rest = size.saturating_sub(chosen.len());
    if resource == Resource::Card {
        chosen.extend(free.take(rest).cloned());
        return chosen;
    }
    let wanted = must_include.first().and_then(|id| resource.card(id).ok());
    let mut by_card: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for id in free {
        if let Ok(uuid) = resource.card(id) {
            by_card.entry(uuid).or_default().push(id);
        }
    }
    let enough = by_card
        .iter()
        .filter(|(uuid, ids)| ids.len() >= rest && wanted.is_none_or(|wanted| wanted == **uuid));
    match enough.min_by_key(|(_, ids)| ids.len()) {
        Some((_, ids)) => {
            chosen.extend(ids.iter().take(rest).map(|id| (*id).clone()));
            chosen
        }
        None => Vec::new(),
    }
}

/// Checks whether ids can be given to a container beside what others have, and returns their cards.
///
/// # Errors
/// An id names no card; units of several cards; a card that is in use as the other resource.
pub(crate) fn check<'a>(
    cards: &'a [Card],
    others: &[Claim],
    resource: Resource,
    ids: &[String],
) -> anyhow::Result<Vec<&'a Card>> {
    let uses = uses(others);
    let mut found: Vec<&Card> = Vec::new();
    for id in ids {
        let uuid = resource.card(id)?;
        let Some(card) = cards.iter().find(|card| card.uuid == uuid) else {
            bail!("no card has the UUID {uuid}");
        };
        match (resource, uses.get(uuid)) {
            (Resource::Memory, Some(Use::Whole)) => bail!("card {uuid} is given out whole"),
            (Resource::Card, Some(Use::Units)) => bail!("units of card {uuid} are given out"),
            _ => {}
        }
        if !found.contains(&card) {
            found.push(card);
        }
    }
    ensure!(!found.is_empty(), "no ids of {}", resource.name());
    ensure!(
        resource == Resource::Card || found.len() == 1,
        "no card has {} free units of {}; units of several cards are not given to one container",
        ids.len(),
        resource.name()
    );
    Ok(found)
}

/// Returns the most memory that a pod may have on each of the cards that its claims name: `None` on a card
/// that it has whole. Ids that several of its containers share count once.
pub(crate) fn limits(claims: &[&Claim]) -> BTreeMap<String, Option<u64>> {
    let mut limits = BTreeMap::new();
    let of = |resource| {
        let claims = claims.iter().filter(move |claim| claim.resource == resource);
        let ids: BTreeSet<&str> = claims.flat_map(|claim| &claim.ids).map(String::as_str).collect();
        ids
    };
    for id in of(Resource::Memory) {
        if let Ok(uuid) = Resource::Memory.card(id) {
            let limit = limits.entry(uuid.to_owned()).or_insert(Some(0_u64));
            *limit = limit.map(|bytes| bytes.saturating_add(UNIT));
        }
    }
    for uuid in of(Resource::Card) {
        limits.insert(uuid.to_owned(), None);
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cards() -> Vec<Card> {
        let card = |index: &str, total| Card {
            index: index.to_owned(),
            uuid: format!("GPU-{index}"),
            pci: String::new(),
            total,
            is_healthy: true,
            xid: None,
        };
        vec![card("0", 3 * UNIT), card("1", 5 * UNIT - 1)]
    }

    fn claim(resource: Resource, ids: &[&str]) -> Claim {
        Claim {
            pod: Some("uid".to_owned()),
            container: "c".to_owned(),
            resource,
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        }
    }

    fn owned(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    /// Returns the healthy ids.
    fn healthy(cards: &[Card], claims: &[Claim], resource: Resource) -> Vec<String> {
        let devices = devices(cards, claims, resource).into_iter();
        devices.filter(|(_, is)| *is).map(|(id, _)| id).collect()
    }

    #[test]
    fn ids_name_their_card() {
        assert_eq!(Resource::Memory.card("GPU-a.b.12").unwrap(), "GPU-a.b");
        assert_eq!(Resource::Card.card("GPU-a").unwrap(), "GPU-a");
        for id in ["", "GPU-a", "GPU-a.", "GPU-a.x", ".1"] {
            assert!(Resource::Memory.card(id).is_err(), "{id:?}");
        }
    }

    #[test]
    fn units_are_whole_gibibytes_of_each_card() {
        let units = healthy(&cards(), &[], Resource::Memory);
        assert_eq!(units.len(), 3 + 4);
        assert_eq!(units[3], "GPU-1.0");
        assert_eq!(healthy(&cards(), &[], Resource::Card), ["GPU-0", "GPU-1"]);
    }

    #[test]
    fn card_is_given_as_units_or_whole_not_both() {
        let units = [claim(Resource::Memory, &["GPU-0.2"])];
        assert_eq!(healthy(&cards(), &units, Resource::Card), ["GPU-1"]);
        assert_eq!(healthy(&cards(), &units, Resource::Memory).len(), 7);
        assert!(check(&cards(), &units, Resource::Card, &owned(&["GPU-0"])).is_err());
        assert!(check(&cards(), &units, Resource::Memory, &owned(&["GPU-0.1"])).is_ok());

        let whole = [claim(Resource::Card, &["GPU-1"])];
        assert_eq!(healthy(&cards(), &whole, Resource::Memory).len(), 3);
        assert_eq!(healthy(&cards(), &whole, Resource::Card), ["GPU-0", "GPU-1"]);
        assert!(check(&cards(), &whole, Resource::Memory, &owned(&["GPU-1.1"])).is_err());
    }

    #[test]
    fn unhealthy_card_offers_nothing() {
        let mut cards = cards();
        cards[0].is_healthy = false;
        assert_eq!(healthy(&cards, &[], Resource::Card), ["GPU-1"]);
        assert_eq!(healthy(&cards, &[], Resource::Memory).len(), 4);
    }

    #[test]
    fn preferred_units_fill_the_fullest_card_with_room() {
        let free = owned(&["GPU-0.0", "GPU-1.0", "GPU-0.2", "GPU-1.3", "GPU-1.1"]);
        let prefer = |must: &[&str], size| preferred(Resource::Memory, &free, &owned(must), size);
        assert_eq!(prefer(&[], 2), ["GPU-0.0", "GPU-0.2"]);
        assert_eq!(prefer(&[], 3), ["GPU-1.0", "GPU-1.3", "GPU-1.1"]);
        assert!(prefer(&[], 4).is_empty());
        assert_eq!(prefer(&["GPU-1.3"], 2), ["GPU-1.3", "GPU-1.0"]);
        assert!(prefer(&["GPU-0.0"], 3).is_empty());
        let cards = owned(&["GPU-0", "GPU-1"]);
        assert_eq!(
            preferred(Resource::Card, &cards, &owned(&["GPU-1"]), 2),
            ["GPU-1", "GPU-0"]
        );
    }

    #[test]
    fn units_of_several_cards_and_unknown_ids_are_refused() {
        for ids in [&["GPU-0.0", "GPU-1.0"][..], &["GPU-7.0"], &["GPU-0"], &[]] {
            assert!(
                check(&cards(), &[], Resource::Memory, &owned(ids)).is_err(),
                "{ids:?}"
            );
        }
        let cards = cards();
        let found = check(&cards, &[], Resource::Card, &owned(&["GPU-0", "GPU-1"])).unwrap();
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn limits_count_each_unit_of_a_pod_once() {
        let claims = [
            claim(Resource::Memory, &["GPU-0.0", "GPU-0.1"]),
            claim(Resource::Memory, &["GPU-0.1", "GPU-0.2"]),
            claim(Resource::Card, &["GPU-1"]),
        ];
        let limits = limits(&claims.iter().collect::<Vec<_>>());
        assert_eq!(limits["GPU-0"], Some(3 * UNIT));
        assert_eq!(limits["GPU-1"], None);
    }
}
