module flashindex-router

go 1.19
