//! Whether a broker's address can be moved here.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use drivers::address::{DOES_NOT_FIT, UNANSWERED};
use recovery::model::{Broker, Check};
use recovery::ports::{Address, Note};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Item;
use super::looks::NETWORK_LIMIT;

pub(super) async fn moves(address: Option<Arc<dyn Address>>, broker: Broker) -> Vec<Item> {
    let item = Check::Address(broker.id);
    let Some(address) = address else {
        let says = "none is moved: clients must find this host by other means";
        return vec![Item::warn(item, says, "add [broker.address] if nothing else does")];
    };
    let found = address.check().await;
    if let Ok(note) = &found
        && let Some(says) = is_routed(address.as_ref(), &broker, note).await
    {
        return vec![Item::fail(item, says, DOES_NOT_FIT)];
    }
    vec![Item::of(item, found, "correct [broker.address], or the network of this host")]
}

/// Whether somebody answers at the address that no host on the link has: neighbours do not decide where it is.
async fn is_routed(address: &dyn Address, broker: &Broker, note: &Note) -> Option<String> {
    note.details.get(UNANSWERED)?;
    let moved: IpAddr = broker.address.as_ref()?.split('/').next()?.parse().ok()?;
    let at = SocketAddr::new(moved, broker.listener.port);
    timeout(NETWORK_LIMIT, TcpStream::connect(at)).await.ok()?.ok()?;
    // Asked again: a host on the link, slow at first, has just been asked for the connection too.
    let holder = address.holder().await.ok()?;
    holder.is_none().then(|| {
        format!(
            "a broker answers at {at}, and no host on the link of its interface has {moved}: the network routes \
             it, and would not learn that it moves"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fakes::World;
    use recovery::model::Moment;
    use recovery::ports::Clock;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_address_that_answers_and_that_no_neighbour_has_is_routed() {
        let world = World::new();
        let address = world.ports().addresses.into_values().next().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut broker = World::topology().brokers.into_values().next().unwrap();
        broker.address = Some("127.0.0.1/32".to_owned());
        broker.listener.port = listener.local_addr().unwrap().port();
        let (silent, answered) = (Note::new("").with(UNANSWERED, true), Note::new(""));

        let says = is_routed(address.as_ref(), &broker, &silent).await.unwrap();
        assert!(says.contains(&format!("a broker answers at 127.0.0.1:{}", broker.listener.port)), "{says}");
        assert_eq!(is_routed(address.as_ref(), &broker, &answered).await, None);
        // A neighbour that was slow.
        world.truth().answers_arp_until = Some(Moment(world.now().mono.0 + Duration::from_secs(60)));
        assert_eq!(is_routed(address.as_ref(), &broker, &silent).await, None);
        world.truth().answers_arp_until = None;
        // A broker that is down shows nothing.
        drop(listener);
        assert_eq!(is_routed(address.as_ref(), &broker, &silent).await, None);
    }
}
