package endpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hawser-net/hawser/internal/datapath"
)

// AuditMode says whether what an endpoint's policy refuses passes and is only told of.
type AuditMode string

// Modes of an endpoint.
const (
	AuditInherited AuditMode = "" // what the node says
	AuditEnabled   AuditMode = "Enabled"
	AuditDisabled  AuditMode = "Disabled"
)

// ParseAudit reads a mode in any way that the field writes switches, or "inherited".
func ParseAudit(text string) (AuditMode, error) {
	switch strings.ToLower(text) {
	case "enabled", "enable", "true", "on", "1":
		return AuditEnabled, nil
	case "disabled", "disable", "false", "off", "0":
		return AuditDisabled, nil
	case "inherited":
		return AuditInherited, nil
	}
	return AuditInherited, fmt.Errorf("%q is none of Enabled, Disabled, Inherited", text)
}

// AuditOf is the mode of who is in audit mode or not.
func AuditOf(on bool) AuditMode {
	if on {
		return AuditEnabled
	}
	return AuditDisabled
}

// kernelRow is the endpoint's kernel row under a binding. It must be called with mu held.
func (p *Policy) kernelRow(ep Endpoint, ruleSet datapath.RuleSetID, generation uint32, locked bool) datapath.Endpoint {
	row := ep.datapathRow(ruleSet, generation, locked)
	row.Audit = p.audits(ep)
	return row
}

// audits reports whether an endpoint is to be in audit mode. It must be called with mu held.
func (p *Policy) audits(ep Endpoint) bool {
	return ep.Audit == AuditEnabled || ep.Audit == AuditInherited && p.audit
}

// stale reports whether the kernel may have a row with another mode, or nobody knows which row. It
// must be called with mu held.
func (p *Policy) stale(b *boundRow) bool {
	return b.dirty() || b.written && b.kernel.Audit != p.audits(b.endpoint)
}

// SetAudit says whether endpoints that inherit it are in audit mode. Flows that it let pass are
// judged again when it ends. What cannot be written is returned as ErrRowNotWritten, and written by
// Retry; other errors are of endpoints that drop all their packets, in either mode.
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

// Audit returns the mode of endpoints that inherit it, and how many endpoints are in audit mode by
// whatever says so, or may be because a row could not be written.
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

// SetAudit changes an endpoint's audit mode, which it keeps when the agent starts again, also
// of one that drops all its packets. If it fails the mode stays.
func (l *Lifecycle) SetAudit(ctx context.Context, id uint16, mode AuditMode) (Endpoint, error) {
	unlock := l.lock(id)
	defer unlock()
	old, ok := l.cfg.Registry.Get(id)
	if !ok {
		return Endpoint{}, fmt.Errorf("%w: cilium-local:%d", ErrNotFound, id)
	}
	if old.State == StateRestoring {
		var err error
		if old, err = l.takeUp(ctx, old); err != nil {
			return old, fmt.Errorf("endpoint %d keeps its audit mode: %w", id, err)
		}
	}
	row := old
	row.Audit = mode
	if err := l.cfg.Store.Put(row); err != nil {
		return old, fmt.Errorf("endpoint %d keeps its audit mode: %w", id, err)
	}
	kernel, revision, err := l.cfg.Policy.Attach(row)
	if errors.Is(err, ErrRowNotWritten) {
		_, _, undone := l.cfg.Policy.Attach(old)
		return old, fmt.Errorf("endpoint %d keeps its audit mode: %w", id, errors.Join(err, undone, l.cfg.Store.Put(old)))
	}
	if err != nil {
		l.cfg.Log.Warn("the audit mode of an endpoint that drops all its packets has changed", "endpoint", id, "error", err)
	}
	row.Kernel, row.PolicyRevision = kernel, revision
	row, _ = l.set(row, row.State, "audit mode "+string(AuditOf(kernel.Audit)))
	return row, nil
}
