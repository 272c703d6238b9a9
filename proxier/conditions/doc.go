// Package conditions knows of endpoints what their files do not say: what health checks have
// found, who drains them, and which of them are in a slow start. A Keeper composes the
// policy.Conditions of these, and keeps them in the state directory: a restart changes
// nothing of them.
//
//	healthcheck.Checker --Report--> Keeper --Reconsider--> loop.Loop --Use, Conditions--> Keeper
//
// What of it an endpoint is used for is decided in policy.Resolve, not here.
//
//	keeper                what the Loop asks for, what the Checker reports, and drains that take effect and are kept
//	service               a service in use, its endpoints, and their slow starts
//	follow                which questions are asked for the endpoints of a service
//	compose               the Conditions of a service
//	returning             endpoints that come back after all have failed
//	settled               whose connections may be closed
//	tell                  lines of the log, of which there are never many
//	former                endpoints that are gone, for when they come back
//	state, statefile      what a restart knows
//	readstate             reading that, as far as it can be read
//	drains, draintarget   who drains what
package conditions
