package enforcement

import (
	"errors"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/endpoint"
)

// kernelRow is the endpoint's kernel row under a binding. It must be called with mu held.
func (p *Policy) kernelRow(ep endpoint.Endpoint, ruleSet datapath.RuleSetID, generation uint32, locked bool) datapath.Endpoint {
	row := ep.KernelRow(ruleSet, generation, locked)
	row.Audit = p.audits(ep)
	return row
}

// audits reports whether an endpoint is to be in audit mode. It must be called with mu held.
func (p *Policy) audits(ep endpoint.Endpoint) bool {
	return ep.Audit == endpoint.AuditEnabled || ep.Audit == endpoint.AuditInherited && p.audit
}

// stale reports whether the kernel may have a row with another mode, or an unknown one. It must be
// called with mu held.
func (p *Policy) stale(b *boundRow) bool {
	return b.dirty() || b.written && b.kernel.Audit != p.audits(b.endpoint)
}

// SetAudit reports whether endpoints that inherit it are in audit mode. Flows that it let pass are
// evaluated again when it ends. What cannot be written is returned as [endpoint.ErrRowNotWritten],
// and written by Retry; other errors are of endpoints that drop all their packets, in either mode.
func (p *Policy) SetAudit(on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.audit = on
	var errs []error
	for _, b := range p.rows {
		if p.stale(b) {
			errs = append(errs, p.rebind(b))
		}
	}
	return errors.Join(errs...)
}

// Audit returns the mode of endpoints that inherit it, and how many endpoints are in audit mode for
// any reason, or may be because a row could not be written.
func (p *Policy) Audit() (on bool, endpoints int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.rows {
		if b.kernel.Audit {
			endpoints++
		}
	}
	return p.audit, endpoints
}
