//! Generates `src/kubelet/v1beta1.rs` from `proto/deviceplugin.proto`.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = protox::compile(["deviceplugin.proto"], [plugin.join("proto")])?;
    tonic_prost_build::configure()
        .out_dir(plugin.join("src/kubelet"))
        .compile_fds(files)?;
    Ok(())
}
