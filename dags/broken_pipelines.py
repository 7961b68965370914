"""Makes no DAGs. It raises the errors of broken pipeline files, so that the DAGs of the others keep working."""

from ackline.airflow.dags import broken_files
from ackline.errors import ConfigError
from ackline.pipeline.folder import pipelines_folder

broken = broken_files(pipelines_folder())
if broken:
    raise ConfigError("pipeline files without a DAG:\n" + "\n".join(broken.values()))
