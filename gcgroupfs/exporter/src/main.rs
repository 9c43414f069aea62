mod client;
mod files;
mod metrics;
mod owner;
mod snapshot;
fn main() {
    let a = std::env::args().nth(1).unwrap();
    let s = snapshot::Snapshot::read(
        a.as_ref(),
        snapshot::Caps {
            processes: 9,
            groups: 9,
        },
        &mut owner::Users::default(),
    )
    .unwrap();
    let t = metrics::open_metrics(Some(&s)).unwrap();
    print!("{}", t);
    print!("{}", metrics::prometheus_text(&t));
}
