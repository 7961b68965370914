"""No DAGs: pipeline files that gave none show here as an import error, so that the others keep working."""

from ackline.airflow.dags import make_dags
from ackline.errors import ConfigError
from ackline.paths import pipelines_folder

broken = make_dags(pipelines_folder(), __file__).broken
if broken:
    raise ConfigError("pipeline files without a DAG:\n" + "\n".join(broken.values()))
