//! NVML: the library that `nvidia-smi` asks as well. It comes with the driver and is loaded when it is first needed.

use super::{Quantity, Reading};
use crate::error::Result;
use crate::libraries::{Library, load};
use nvml_wrapper::enum_wrappers::device::{Clock, PcieUtilCounter, TemperatureSensor};
use nvml_wrapper::{Device, Nvml};
use std::sync::OnceLock;

/// NVML, opened once and left open: opening it looks all of its functions up.
fn nvml() -> Result<&'static Nvml> {
    static OPEN: OnceLock<Nvml> = OnceLock::new();
    if let Some(open) = OPEN.get() {
        return Ok(open);
    }
    // For the reason that is told where it is not there.
    load(Library::Nvml)?;
    let opened = Nvml::init()?;
    Ok(OPEN.get_or_init(|| opened))
}

/// NVML's version, such as `13.580.95.05`.
///
/// # Errors
/// No NVML, or no driver behind it.
pub fn version() -> Result<String> {
    Ok(nvml()?.sys_nvml_version()?)
}

/// Reads the card at a place on the PCI bus, such as `0000:1b:00.0`.
///
/// # Errors
/// As [`version`]; no such card.
pub(super) fn reader(pci_bus_id: &str) -> Result<impl FnMut() -> Reading + Send + 'static> {
    let device = nvml()?.device_by_pci_bus_id(pci_bus_id)?;
    Ok(move || read(&device))
}

/// Everything that the card tells. Errors are ordinary here: slices of a card and cards in virtual machines tell less.
fn read(device: &Device) -> Reading {
    let utilisation = device.utilization_rates().ok();
    let memory = device.memory_info().ok();
    let clock = |which| device.clock_info(which).ok().map(f64::from);
    // Kilobytes a second.
    let pcie = |counter| device.pcie_throughput(counter).ok().map(|rate| 1e-3 * f64::from(rate));
    Reading::default()
        .with(Quantity::Utilisation, utilisation.as_ref().map(|u| f64::from(u.gpu)))
        .with(Quantity::MemoryUsed, memory.as_ref().map(|m| m.used as f64))
        .with(Quantity::MemoryTotal, memory.as_ref().map(|m| m.total as f64))
        .with(Quantity::MemoryUtilisation, utilisation.as_ref().map(|u| f64::from(u.memory)))
        // Milliwatts.
        .with(Quantity::Power, device.power_usage().ok().map(|power| f64::from(power) / 1e3))
        .with(Quantity::Temperature, device.temperature(TemperatureSensor::Gpu).ok().map(f64::from))
        .with(Quantity::SmClock, clock(Clock::SM))
        .with(Quantity::MemoryClock, clock(Clock::Memory))
        // What the card receives and sends.
        .with(Quantity::Upload, pcie(PcieUtilCounter::Receive))
        .with(Quantity::Download, pcie(PcieUtilCounter::Send))
}
