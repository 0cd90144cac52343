"""DuckDB: tables of Parquet and CSV over its extension httpfs, which a package brings."""

from __future__ import annotations

import boto3
import duckdb
from checks import ACCESS_KEY, SECRET_KEY, bucket_name, check, end, endpoint, equal
from duckdb_extensions import import_extension

bucket = bucket_name()
s3 = boto3.client("s3", "us-east-1", endpoint_url=endpoint())
s3.create_bucket(Bucket=bucket)
import_extension("httpfs")
sql = duckdb.connect()
sql.execute("LOAD httpfs")
sql.execute(f"""
    CREATE SECRET (TYPE s3, KEY_ID '{ACCESS_KEY}', SECRET '{SECRET_KEY}', REGION 'us-east-1',
                   ENDPOINT '{endpoint().removeprefix("http://")}', URL_STYLE 'path', USE_SSL false)
""")

with check("puts"):
    for number in range(200):
        sql.execute(
            f"COPY (SELECT {number} AS part, range AS n, 'row ' || range AS text FROM range(50))"
            f" TO 's3://{bucket}/t/{number:03d}.parquet'"
        )
with check("lists"):
    found = sql.sql(f"SELECT count(*) FROM glob('s3://{bucket}/t/*.parquet')").fetchone()
    equal(found, (200,))
with check("reads"):
    found = sql.sql(f"SELECT count(*), sum(part), sum(n), min(text) FROM 's3://{bucket}/t/*.parquet'").fetchone()
    equal(found, (10_000, 50 * 199 * 100, 200 * 49 * 25, "row 0"))
with check("multipart upload"):
    query = "SELECT range AS n, hash(range) AS h FROM range(2_000_000)"
    sql.execute(f"COPY ({query}) TO 's3://{bucket}/large.parquet'")
    equal(s3.head_object(Bucket=bucket, Key="large.parquet")["ContentLength"] > 10 << 20, True)
    different = f"SELECT count(*) FROM (({query}) EXCEPT (FROM 's3://{bucket}/large.parquet'))"
    equal(sql.sql(different).fetchone(), (0,))
with check("range reads"):
    equal(sql.sql(f"SELECT n FROM 's3://{bucket}/large.parquet' WHERE n = 1234567").fetchall(), [(1234567,)])
with check("lines of text"):
    sql.execute(f"COPY (SELECT range AS n FROM range(1000)) TO 's3://{bucket}/a b.csv'")
    equal(sql.sql(f"SELECT sum(n) FROM 's3://{bucket}/a b.csv'").fetchone(), (499_500,))
end()
