"""The program that spark-submit runs. It has a folder of its own, because Spark puts the program's folder on the import
path: no other module of Ackline may be found there under a short name."""
