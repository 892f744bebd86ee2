//! The device of `--device`: a preset, or a file that describes one.
//!
//! `{"provider": "cuda", "operations_per_second": 1.9e13, "bytes_per_second": 1.5e12,
//! "launch_us": 4}`, with the rates of single precision; `half_operations_per_second` (else the
//! same) and `name` (else the path) may be added.

use std::io;
use std::path::{Path, PathBuf};

use ckpt_passes::cost::Nanos;
use ckpt_passes::operators::{CpuKernels, Provider};
use ckpt_passes::runtime::convolutions::Convolutions;
use ckpt_passes::runtime::device::Device;
use serde::Deserialize;
use thiserror::Error;

use super::file;

/// Why there is no such device.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum DeviceError {
    #[error("no device is called {name:?}, and there is no such file; known are {known}")]
    Unknown { name: String, known: String },
    #[error("{}: cannot read the device: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error(
        "{}: not a device: {error}; expected {{\"provider\": \"cpu\" or \"cuda\", \
         \"operations_per_second\": 1.9e13, \"bytes_per_second\": 1.5e12, \"launch_us\": 4}}",
        path.display()
    )]
    Form {
        path: PathBuf,
        error: serde_json::Error,
    },
    #[error("{}: {field} is {value}; it must be {expected}", path.display())]
    Rate {
        path: PathBuf,
        field: &'static str,
        value: f64,
        expected: &'static str,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Description {
    name: Option<String>,
    provider: ProviderName,
    operations_per_second: f64,
    half_operations_per_second: Option<f64>,
    bytes_per_second: f64,
    launch_us: f64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ProviderName {
    Cpu,
    Cuda,
}

/// The preset called `name_or_file`, or else the device that this file describes.
pub fn find(name_or_file: &str) -> Result<Device, DeviceError> {
    if let Some(device) = Device::preset(name_or_file) {
        return Ok(device);
    }
    let path = Path::new(name_or_file);
    match file::read(path) {
        Ok(text) => parse(&text, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(DeviceError::Unknown {
            name: name_or_file.to_owned(),
            known: Device::names().collect::<Vec<_>>().join(", "),
        }),
        Err(error) => Err(DeviceError::Read {
            path: path.to_owned(),
            error,
        }),
    }
}

/// The same of a text that is in memory; errors name it as `path`.
pub fn parse(text: &[u8], path: &Path) -> Result<Device, DeviceError> {
    let described: Description =
        serde_json::from_slice(text).map_err(|error| DeviceError::Form {
            path: path.to_owned(),
            error,
        })?;
    let wrong = |field, value, expected| DeviceError::Rate {
        path: path.to_owned(),
        field,
        value,
        expected,
    };
    let half = described
        .half_operations_per_second
        .unwrap_or(described.operations_per_second);
    for (field, value) in [
        ("operations_per_second", described.operations_per_second),
        ("half_operations_per_second", half),
        ("bytes_per_second", described.bytes_per_second),
    ] {
        if value <= 0.0 {
            return Err(wrong(field, value, "more than zero"));
        }
    }
    if described.launch_us < 0.0 {
        return Err(wrong("launch_us", described.launch_us, "zero or more"));
    }
    // Saturates.
    let launch = Nanos((described.launch_us * 1000.0) as u64);
    Ok(Device {
        name: described.name.unwrap_or_else(|| path.display().to_string()),
        provider: match described.provider {
            ProviderName::Cpu => Provider::Cpu,
            ProviderName::Cuda => Provider::Cuda,
        },
        operations_per_second: described.operations_per_second,
        half_operations_per_second: half,
        bytes_per_second: described.bytes_per_second,
        launch,
        dispatch: Device::dispatch(launch),
        convolutions: Convolutions::default(),
        kernels: CpuKernels::DEFAULT,
    })
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn parsed(text: &str) -> Result<Device, DeviceError> {
        parse(text.as_bytes(), Path::new("device.json"))
    }

    #[test]
    fn a_file_describes_a_device() {
        let device = parsed(
            r#"{"provider": "cuda", "operations_per_second": 2e13, "bytes_per_second": 1e12,
                "launch_us": 2.5}"#,
        );
        let expected = Device {
            name: "device.json".to_owned(),
            provider: Provider::Cuda,
            operations_per_second: 2e13,
            half_operations_per_second: 2e13,
            bytes_per_second: 1e12,
            launch: Nanos(2500),
            dispatch: Nanos(1250),
            convolutions: Convolutions::default(),
            kernels: CpuKernels::DEFAULT,
        };
        assert_eq!(device.unwrap(), expected);
    }

    #[test]
    fn errors_say_what_is_expected() {
        let error = |text: &str| parsed(text).unwrap_err().to_string();
        assert_snapshot!(error(r#"{"provider": "tpu"}"#), @r#"device.json: not a device: unknown variant `tpu`, expected `cpu` or `cuda` at line 1 column 18; expected {"provider": "cpu" or "cuda", "operations_per_second": 1.9e13, "bytes_per_second": 1.5e12, "launch_us": 4}"#);
        assert_snapshot!(
            error(r#"{"provider": "cpu", "operations_per_second": 0, "bytes_per_second": 1, "launch_us": 0}"#),
            @"device.json: operations_per_second is 0; it must be more than zero"
        );
        assert_snapshot!(
            error(r#"{"provider": "cpu", "operations_per_second": 1, "bytes_per_second": 1, "launch_us": -1}"#),
            @"device.json: launch_us is -1; it must be zero or more"
        );
    }
}
