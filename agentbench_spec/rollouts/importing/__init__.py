"""Anyone's agent traces to rollouts: formats told apart by content, every repair noted, nothing dropped in silence.

`import_rollouts` reads files and folders, `convert_row` one row, `read_rows` the rows of one file.
"""

from agentbench_spec.rollouts.importing.expansion import named_lists
from agentbench_spec.rollouts.importing.formats import FORMATS, convert_row, instance_of
from agentbench_spec.rollouts.importing.importer import TraceImport, import_rollouts
from agentbench_spec.rollouts.importing.notes import RowFault
from agentbench_spec.rollouts.importing.parquet import table_row
from agentbench_spec.rollouts.importing.reading import read_rows
from agentbench_spec.rollouts.importing.trace_files import only_tables
from agentbench_spec.rollouts.importing.trace_row import Row

__all__ = [
    "FORMATS",
    "Row",
    "RowFault",
    "TraceImport",
    "convert_row",
    "import_rollouts",
    "instance_of",
    "named_lists",
    "only_tables",
    "read_rows",
    "table_row",
]
