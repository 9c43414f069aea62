//! Clients of the HTTP server, and the number of each one's connections: a client at its bound leaves the
//! others theirs.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of connections of one client.
const MAX_PER_CLIENT: usize = 16;

/// Established, in /proc/net/tcp.
const ESTABLISHED: &str = "01";

/// A client: a user of this machine, or another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    User(u32),
    Address(IpAddr),
}

impl Client {
    /// Returns the client at an address. One that is on this machine is its user, because it may choose among
    /// many addresses.
    pub(crate) fn of_tcp(peer: SocketAddr, local: Option<SocketAddr>) -> Self {
        let (address, own) = (
            peer.ip().to_canonical(),
            local.map(|local| local.ip().to_canonical()),
        );
        let is_here = address.is_loopback() || own == Some(address);
        let ports = local.map(|local| (peer.port(), local.port())).filter(|_| is_here);
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"]
            .into_iter()
            .map(fs::read_to_string);
        let user = ports.and_then(|ports| tables.flatten().find_map(|table| user_of(&table, ports)));
        user.map_or(Self::Address(address), Self::User)
    }
}

/// Returns the user of the connection between two ports, from the text of /proc/net/tcp.
fn user_of(table: &str, (from, to): (u16, u16)) -> Option<u32> {
    let port = |address: &str| u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok();
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[_, local, remote, state, _, _, _, user, ..] = words.as_slice() else {
            return None;
        };
        let is_it = state == ESTABLISHED && port(local) == Some(from) && port(remote) == Some(to);
        user.parse().ok().filter(|_| is_it)
    })
}

/// Number of connections of each client that has any.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clients(Arc<Mutex<HashMap<Client, usize>>>);

/// A connection that counts for its client until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    clients: Clients,
    client: Client,
}

impl Clients {
    /// Counts one more connection of a client; `None` if it has [`MAX_PER_CLIENT`].
    pub(crate) fn count(&self, client: Client) -> Option<Counted> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(client).or_default();
        if *count >= MAX_PER_CLIENT {
            return None;
        }
        *count += 1;
        Some(Counted {
            clients: self.clone(),
            client,
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.clients.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
        }
        counts.retain(|_, count| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_of_a_local_connection_is_found_by_its_ports() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n\
                     0: 0100007F:2378 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0 0 7\n\
                     1: 0100007F:D431 0100007F:2378 06 00000000:00000000 00:00000000 00000000     9 0 7\n\
                     2: 0200007F:D431 0100007F:2378 01 00000000:00000000 00:00000000 00000000  1000 0 7\n";
        assert_eq!(user_of(table, (0xd431, 0x2378)), Some(1000));
        assert_eq!(user_of(table, (0xd432, 0x2378)), None);
    }

    #[test]
    fn client_at_its_bound_leaves_others_theirs() {
        let clients = Clients::default();
        let of = |uid| clients.count(Client::User(uid));
        let mut held: Vec<_> = (0..MAX_PER_CLIENT).map_while(|_| of(1)).collect();
        assert_eq!(held.len(), MAX_PER_CLIENT);
        assert!(of(1).is_none() && of(2).is_some());
        held.pop();
        assert!(of(1).is_some());
        drop(held);
        assert!(clients.0.lock().unwrap().is_empty());
    }
}
