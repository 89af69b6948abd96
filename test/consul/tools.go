//go:build tools

// Package consul names the Consul server that tests of the Consul driver run against. It is a
// module of its own, so that nothing of the server's is linked, or even resolved, with the product.
// `make consul` builds it.
package consul

import _ "github.com/hashicorp/consul"
