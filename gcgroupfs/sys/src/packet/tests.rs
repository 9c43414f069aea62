//! Receiving packets without their descriptors.

use std::io::IoSlice;

use nix::sys::socket::{ControlMessage, Shutdown, sendmsg, shutdown};

use super::*;

fn send(socket: &OwnedFd, packet: &[u8], descriptors: &[i32]) {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let rights = if descriptors.is_empty() { &[] } else { &rights[..] };
    let parts = [IoSlice::new(packet)];
    sendmsg::<()>(socket.as_raw_fd(), &parts, rights, MsgFlags::empty(), None).unwrap();
}

/// Closes the other end of a socket, and waits until it is closed: a process that another test starts has a
/// copy between fork(2) and exec(2).
fn close(theirs: OwnedFd, ours: &OwnedFd) {
    drop(theirs);
    let mut watched = [PollFd::new(ours.as_fd(), PollFlags::empty())];
    assert_eq!(poll(&mut watched, 60_000_u16), Ok(1));
}

#[test]
fn packet_with_descriptors_stays_in_the_socket() {
    let (ours, theirs) = packet_pair().unwrap();
    let mut buffer = [0; 8];
    assert_eq!(receive_plain(&ours, &mut buffer), Err(Errno::EAGAIN));
    send(&theirs, b"plain", &[]);
    send(&theirs, b"rights", &[ours.as_raw_fd()]);
    assert_eq!(receive_plain(&ours, &mut buffer), Ok(Plain::Packet(5)));
    assert_eq!(&buffer[..5], b"plain");
    for _ in 0..2 {
        assert_eq!(receive_plain(&ours, &mut buffer), Ok(Plain::WithRights(6)));
        assert_eq!(&buffer[..6], b"rights");
    }
    let received = receive(&ours, &mut buffer).unwrap();
    assert_eq!((received.length, received.descriptors.len()), (6, 1));
    for (packet, rights) in [(&b"too long a packet"[..], false), (b"", false), (b"", true)] {
        let descriptors = [theirs.as_raw_fd()];
        send(&theirs, packet, if rights { &descriptors } else { &[] });
        let expected = if rights {
            Plain::WithRights(0)
        } else {
            Plain::Senseless
        };
        assert_eq!(receive_plain(&ours, &mut buffer), Ok(expected));
        receive(&ours, &mut buffer).unwrap();
    }
    close(theirs, &ours);
    assert_eq!(receive_plain(&ours, &mut buffer), Ok(Plain::Senseless), "the end");
}

#[test]
fn connection_with_any_packet_is_known_without_reading() {
    // Packets in the connection, and whether each carries a descriptor.
    type Packets<'a> = &'a [(&'a [u8], bool)];
    let cases: [Packets; 5] = [
        &[],
        &[(b"a", false), (b"long", false)],
        &[(b"", false)],
        &[(b"a", true)],
        &[(b"", true)],
    ];
    for packets in cases {
        for is_closed in [false, true] {
            let (ours, theirs) = packet_pair().unwrap();
            for (packet, has_rights) in packets {
                send(&theirs, packet, if *has_rights { &[0] } else { &[] });
            }
            let theirs = if is_closed {
                close(theirs, &ours);
                None
            } else {
                Some(theirs)
            };
            assert_eq!(is_hung_up(&ours), is_closed);
            shutdown(ours.as_raw_fd(), Shutdown::Both).unwrap();
            for _ in 0..2 {
                assert_eq!(
                    holds_packets(&ours),
                    !packets.is_empty(),
                    "{packets:?}, closed: {is_closed}"
                );
            }
            if let Some(theirs) = theirs {
                let flags = MsgFlags::MSG_NOSIGNAL;
                let more = socket::send(theirs.as_raw_fd(), b"more", flags);
                assert_eq!(more, Err(Errno::EPIPE), "nothing gets in any more");
            }
        }
    }
}

#[test]
fn packets_behind_an_error_of_the_socket_are_known() {
    let (ours, theirs) = packet_pair().unwrap();
    send(&ours, b"never read", &[]);
    send(&theirs, b"rights", &[0]);
    // Closed with an unread packet, so the next call fails with ECONNRESET.
    close(theirs, &ours);
    assert!(holds_packets(&ours));
}
