// Package discover takes the place of a module of the same name in the Consul server that tests
// run. That one finds other servers by the clouds they run in, with a client of each cloud: a
// quarter of what there is to compile of Consul. A server of tests is alone, and finds no others.
package discover

import (
	"errors"
	"log"
)

// Provider is a way to find other servers.
type Provider interface {
	Addrs(args map[string]string, l *log.Logger) ([]string, error)
	Help() string
}

// Providers has none.
var Providers map[string]Provider

// Discover finds no servers.
type Discover struct{}

// Option would say more about a Discover.
type Option func(*Discover) error

// New returns a Discover that finds no servers, whatever the options.
func New(...Option) (*Discover, error) { return &Discover{}, nil }

// WithUserAgent has no effect.
func WithUserAgent(string) Option { return nil }

// WithProviders has no effect.
func WithProviders(map[string]Provider) Option { return nil }

// Names are those of the providers: none.
func (*Discover) Names() []string { return nil }

// Addrs fails: a server that is set to look for others must not start as if there were none.
func (*Discover) Addrs(cfg string, _ *log.Logger) ([]string, error) {
	return nil, errors.New("this Consul is built for tests, and cannot look for other servers: " + cfg)
}
