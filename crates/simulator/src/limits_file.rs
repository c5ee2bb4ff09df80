//! Limits of the tenant of all models, in a file that a service reads again.

use std::sync::Arc;

use flash_indexer_access::LimitsFile;
use tempfile::NamedTempFile;

use crate::action::Quotas;

/// The limits file of one service. It outlives restarts of the service.
pub(crate) struct LimitsOfService {
    file: NamedTempFile,
    content: Arc<LimitsFile>,
    /// The limits in the file; none if it is invalid.
    written: Option<Quotas>,
    /// The limits that the service has read last.
    in_force: Quotas,
}

impl LimitsOfService {
    /// A file without limits, and the service's content of it.
    pub(crate) fn new() -> Self {
        let file = NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "[default]\n").expect("a file");
        let content = Arc::new(LimitsFile::load(file.path()).expect("a file without limits"));
        let none = Quotas::default();
        Self { file, content, written: Some(none), in_force: none }
    }

    /// The content, as the service has it.
    pub(crate) fn content(&self) -> Arc<LimitsFile> {
        Arc::clone(&self.content)
    }

    pub(crate) fn write(&mut self, quotas: Option<Quotas>) {
        let field = |name: &str, value: Option<usize>| value.map(|value| format!("{name} = {value}\n"));
        let text = match quotas {
            Some(Quotas { held_blocks, ranks }) => {
                let fields = [field("held_blocks", held_blocks), field("ranks", ranks)];
                format!("[default]\n{}", fields.into_iter().flatten().collect::<String>())
            }
            None => "[default]\nranks = many\n".to_owned(),
        };
        std::fs::write(self.file.path(), text).expect("a file");
        self.written = quotas;
    }

    /// Reads the file again, and returns the limits in force. An invalid file leaves the previous ones in force.
    pub(crate) fn reload(&mut self) -> Result<Quotas, String> {
        match (self.written, self.content.refresh()) {
            (Some(written), Ok(has_changed)) if has_changed == (written != self.in_force) => self.in_force = written,
            (None, Err(_)) => {}
            (written, read) => {
                return Err(format!("the limits file says {written:?}, and its reload returned {read:?}"));
            }
        }
        Ok(self.in_force)
    }
}
