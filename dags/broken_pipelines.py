"""Makes no DAGs. It raises the errors of broken pipeline files, so that the DAGs of the others keep working."""

from ackline.airflow.dags import make_dags
from ackline.errors import ConfigError
from ackline.paths import pipelines_folder

broken = make_dags(pipelines_folder(), __file__).broken
if broken:
    raise ConfigError("pipeline files without a DAG:\n" + "\n".join(broken.values()))
