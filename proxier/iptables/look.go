package iptables

import (
	"context"
	"errors"
)

// Look implements proxier.Backend.
func (b *Backend) Look(context.Context) (bool, error) { return false, errors.ErrUnsupported }
