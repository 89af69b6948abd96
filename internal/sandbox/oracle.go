package sandbox

import (
	"net/netip"
)

// oracle says what the policies allow between parties, computed apart from the agents.
type oracle struct{}

func newOracle(dir, mode string, parties []party) (*oracle, error) { return &oracle{}, nil }

func (o *oracle) expect(from, to party, proto Protocol, addr netip.Addr, port uint16) (bool, string, error) {
	return true, "", nil
}
