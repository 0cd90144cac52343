"""Operations on objects, one module each, behind the methods of Bucket. In reading order: `put_spec`, `put_many`,
`delete`, `pinned` (reads of one version), `copy`, `metadata`, `append`, `multipart` over `compose_request`.
"""
