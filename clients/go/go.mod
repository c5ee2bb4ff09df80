module flashindexer

go 1.19
