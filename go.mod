module github.com/apithrottle/throttle

go 1.25
