//! Fuzz targets: see [`kafka::fuzz`].

use super::{ClientsPage, KnownClients, MAX_CONNECTIONS};

/// A page is written as it was read; whatever it says, no more is taken from it than is allowed, and that of
/// the address only.
pub fn page(bytes: &[u8]) {
    let Ok(page) = serde_json::from_slice::<ClientsPage>(bytes) else { return };
    let again = serde_json::to_vec(&page).map(|text| serde_json::from_slice::<ClientsPage>(&text));
    assert!(matches!(again, Ok(Ok(again)) if again == page));
    let addresses: Vec<_> = page.connections.keys().map(std::net::SocketAddr::ip).collect();
    let known = KnownClients::default();
    known.remember(page);
    for address in addresses {
        let known = known.at(address);
        assert!(known.is_some_and(|known| known.pairs.len() <= MAX_CONNECTIONS
            && known.pairs.iter().all(|(own, _)| own.ip() == address)));
    }
}
