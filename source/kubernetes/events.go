//go:build !nokubernetes

package kubernetes

import (
	"context"
	"fmt"
	"time"

	core "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"svcproxy.dev/svcproxy/source"
)

const (
	eventWait  = 5 * time.Second // for an answer
	maxNote    = 1024            // bytes, of an Event (events/v1)
	controller = "svcproxy"
)

// HealthPortFailed makes an Event of it that a service's health port cannot be
// listened on, as kube-proxy does. It does not block.
func (s *Source) HealthPortFailed(key source.Key, port uint16, why string) {
	note := fmt.Sprintf("node %s failed to start healthcheck %q on port %d: %s", s.NodeName, key, port, why)
	now := time.Now()
	e := &events.Event{
		ObjectMeta: meta.ObjectMeta{Namespace: key.Namespace, Name: fmt.Sprintf("%s.%x", key.Name, now.UnixNano())},
		EventTime:  meta.NewMicroTime(now), ReportingController: controller, ReportingInstance: controller + "-" + s.NodeName,
		Type: core.EventTypeWarning, Reason: "FailedToStartServiceHealthcheck", Action: "Listen", Note: note[:min(len(note), maxNote)],
		Regarding: core.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: key.Namespace, Name: key.Name},
	}
	select {
	case s.events <- e:
	default:
		s.Log.Debug("event dropped: too many wait", "service", key.String())
	}
}

// sendEvents sends events until ctx ends. One that the API server does not take is
// not sent again.
func (s *Source) sendEvents(ctx context.Context, c *client) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-s.events:
			call, cancel := context.WithTimeout(ctx, eventWait)
			err := c.events.Post().Namespace(e.Namespace).Resource("events").MaxRetries(0).Body(e).Do(call).Error()
			cancel()
			if err != nil {
				s.Log.Debug("event not sent", "service", e.Regarding.Name, "err", err)
			}
		}
	}
}
