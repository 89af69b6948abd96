package endpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// AuditMode decides whether what an endpoint's policy refuses passes and is only reported.
type AuditMode string

// Modes of an endpoint.
const (
	AuditInherited AuditMode = "" // the node's mode
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

// AuditOf converts a boolean to a mode.
func AuditOf(on bool) AuditMode {
	if on {
		return AuditEnabled
	}
	return AuditDisabled
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
	old, err := l.takeUpFirst(ctx, old, "audit mode")
	if err != nil {
		return old, err
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
	row.Kernel, row.PolicyRevision, row.Unsaved = kernel, revision, false
	row, _ = l.set(row, row.State, "audit mode "+string(AuditOf(kernel.Audit)))
	return row, nil
}
