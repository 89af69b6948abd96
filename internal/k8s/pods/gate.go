package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/internal/k8s"
)

// ReadinessGate is the condition that a pod names in spec.readinessGates if it is not to be ready
// before all nodes are notified of its addresses and its identity.
const ReadinessGate corev1.PodConditionType = "network.hawser.net/identity-known"

// Gate returns whether a known pod declares [ReadinessGate], and whether its condition is true.
func (p *Pods) Gate(key k8s.Key, uid string) (declared, met bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o, ok := p.pods[key]
	return ok && o.matches(uid) && o.gated, o.met
}

// SetGate writes the condition of [ReadinessGate] into a pod's status. A pod that is gone, or was
// replaced by another of its name, is no error.
func (p *Pods) SetGate(ctx context.Context, key k8s.Key, uid string, met bool, reason, message string) error {
	status := corev1.ConditionFalse
	if met {
		status = corev1.ConditionTrue
	}
	now := metav1.NewTime(time.Now())
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": uid}, // another pod of the name is refused as a conflict
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: ReadinessGate, Status: status, Reason: reason, Message: message, LastTransitionTime: now,
		}}},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, k8s.RequestTimeout)
	defer cancel()
	_, err = p.cfg.Client.Kube.CoreV1().Pods(key.Namespace).Patch(ctx, key.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("write the condition %s of pod %s: %w", ReadinessGate, key, err)
	}
	return nil
}
