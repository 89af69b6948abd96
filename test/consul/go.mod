module github.com/hawser-net/hawser/test/consul

go 1.26.8

require (
	github.com/hashicorp/consul v1.21.0
	github.com/hashicorp/consul/api v1.32.0
)

exclude (
	github.com/hashicorp/go-msgpack v1.1.5
	github.com/hashicorp/go-msgpack v1.1.6
)

replace github.com/hashicorp/go-discover => ./discover
