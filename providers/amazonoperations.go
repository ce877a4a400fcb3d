package providers

// amazonOperations are the operations of the Selling Partner API by their plan: the rate in
// requests a second, and the burst. Each * stands for one segment of a path. They are the usage plans
// in the descriptions of amzn/selling-partner-api-models at 34dc93f, read on 2026-11-22.
var amazonOperations = map[amazonPlan]string{
	{0.0056, 20}: `
		GET /orders/2026-01-01/orders`,
	{0.0083, 15}: `
		POST /feeds/2021-06-30/feeds`,
	{0.016, 15}: `
		GET /sellers/v1/account
		GET /sellers/v1/marketplaceParticipations`,
	{0.0167, 1}: `
		POST /applications/2023-11-30/clientSecret`,
	{0.0167, 15}: `
		GET /dataKiosk/2023-11-15/documents/*
		POST /dataKiosk/2023-11-15/queries
		GET /reports/2021-06-30/documents/*
		POST /reports/2021-06-30/reports`,
	{0.0167, 20}: `
		GET /orders/v0/orders`,
	{0.017, 2}: `
		POST /finances/transfers/2024-06-01/payouts`,
	{0.0222, 10}: `
		GET /dataKiosk/2023-11-15/queries
		DELETE /dataKiosk/2023-11-15/queries/*
		GET /feeds/2021-06-30/documents/*
		GET /feeds/2021-06-30/feeds
		GET /reports/2021-06-30/reports
		DELETE /reports/2021-06-30/reports/*
		GET /reports/2021-06-30/schedules
		POST /reports/2021-06-30/schedules
		DELETE /reports/2021-06-30/schedules/*
		GET /reports/2021-06-30/schedules/*`,
	{0.033, 1}: `
		POST /batches/products/pricing/2022-05-01/items/competitiveSummary
		POST /batches/products/pricing/2022-05-01/offer/featuredOfferExpectedPrice`,
	{0.1, 1}: `
		POST /batches/products/pricing/v0/itemOffers`,
	{0.5, 1}: `
		POST /batches/products/pricing/v0/listingOffers
		POST /products/fees/v0/feesEstimate
		GET /products/pricing/v0/competitivePrice
		GET /products/pricing/v0/items/*/offers
		GET /products/pricing/v0/price`,
	{0.5, 10}: `
		GET /finances/2024-06-19/balances
		GET /finances/2024-06-19/summary
		GET /finances/2024-06-19/transactions
		GET /finances/transfers/2024-06-01/payouts
		GET /finances/transfers/2024-06-01/payouts/expected`,
	{0.5, 15}: `
		POST /feeds/2021-06-30/documents
		GET /sales/v1/orderMetrics`,
	{0.5, 30}: `
		GET /finances/transfers/2024-06-01/paymentMethods
		GET /finances/v0/financialEventGroups
		GET /finances/v0/financialEventGroups/*/financialEvents
		GET /finances/v0/financialEvents
		GET /finances/v0/orders/*/financialEvents
		GET /orders/2026-01-01/orders/*
		GET /orders/v0/orders/*
		GET /orders/v0/orders/*/address
		GET /orders/v0/orders/*/buyerInfo
		GET /orders/v0/orders/*/orderItems
		GET /orders/v0/orders/*/orderItems/buyerInfo
		GET /orders/v0/orders/*/regulatedInfo
		PATCH /orders/v0/orders/*/regulatedInfo`,
	{1, 1}: `
		POST /awd/2024-05-09/inboundEligibility
		POST /awd/2024-05-09/inboundOrders
		PUT /awd/2024-05-09/inboundOrders/*
		POST /awd/2024-05-09/inboundOrders/*/cancellation
		POST /awd/2024-05-09/inboundOrders/*/confirmation
		GET /awd/2024-05-09/inboundShipments
		PUT /awd/2024-05-09/inboundShipments/*/transport
		GET /awd/2024-05-09/outboundOrders
		POST /awd/2024-05-09/outboundOrders
		GET /awd/2024-05-09/outboundOrders/*
		PUT /awd/2024-05-09/outboundOrders/*
		POST /awd/2024-05-09/outboundOrders/*/confirmation
		GET /fba/inbound/v1/eligibility/itemPreview
		POST /mfn/v0/additionalSellerInputs
		DELETE /mfn/v0/shipments/*
		GET /mfn/v0/shipments/*
		POST /replenishment/2022-11-07/offers/metrics/search
		POST /replenishment/2022-11-07/offers/search
		POST /replenishment/2022-11-07/sellingPartners/metrics/search
		GET /shipping/v1/tracking/*`,
	{1, 2}: `
		GET /awd/2024-05-09/inboundShipments/*/labelPageTypes
		GET /awd/2024-05-09/inboundShipments/*/labels
		GET /catalog/v0/categories
		POST /products/fees/v0/items/*/feesEstimate
		POST /products/fees/v0/listings/*/feesEstimate
		GET /products/pricing/v0/listings/*/offers
		PUT /service/v1/serviceJobs/*/appointments/*/resources`,
	{1, 5}: `
		POST /appIntegrations/2024-04-01/notifications
		POST /appIntegrations/2024-04-01/notifications/*/feedback
		POST /appIntegrations/2024-04-01/notifications/deletion
		GET /easyShip/2022-03-23/package
		PATCH /easyShip/2022-03-23/package
		POST /easyShip/2022-03-23/package
		POST /easyShip/2022-03-23/packages/bulk
		POST /easyShip/2022-03-23/timeSlot
		GET /messaging/v1/orders/*
		GET /messaging/v1/orders/*/attributes
		POST /messaging/v1/orders/*/messages/confirmCustomizationDetails
		POST /messaging/v1/orders/*/messages/confirmDeliveryDetails
		POST /messaging/v1/orders/*/messages/confirmOrderDetails
		POST /messaging/v1/orders/*/messages/confirmServiceDetails
		POST /messaging/v1/orders/*/messages/digitalAccessKey
		POST /messaging/v1/orders/*/messages/legalDisclosure
		POST /messaging/v1/orders/*/messages/unexpectedProblem
		POST /messaging/v1/orders/*/messages/warranty
		GET /notifications/v1/destinations
		POST /notifications/v1/destinations
		DELETE /notifications/v1/destinations/*
		GET /notifications/v1/destinations/*
		GET /notifications/v1/subscriptions
		GET /notifications/v1/subscriptions/*
		POST /notifications/v1/subscriptions/*
		DELETE /notifications/v1/subscriptions/*/*
		GET /notifications/v1/subscriptions/*/*
		POST /notifications/v1/subscriptions/*/testNotification
		GET /solicitations/v1/orders/*
		POST /solicitations/v1/orders/*/solicitations/productReviewAndSellerFeedback`,
	{1, 10}: `
		POST /tokens/2021-03-01/restrictedDataToken`,
	{1.133, 25}: `
		POST /delivery/2022-07-01/invoice
		GET /delivery/2022-07-01/invoice/status
		GET /fba/outbound/brazil/v0/shipments/*
		POST /fba/outbound/brazil/v0/shipments/*/invoice
		GET /fba/outbound/brazil/v0/shipments/*/invoice/status`,
	{2, 2}: `
		GET /awd/2024-05-09/inboundOrders/*
		GET /awd/2024-05-09/inboundShipments/*
		GET /awd/2024-05-09/inventory
		GET /catalog/2020-12-01/items
		GET /catalog/2020-12-01/items/*
		GET /catalog/2022-04-01/items
		GET /catalog/2022-04-01/items/*
		GET /fba/inventory/v1/summaries
		POST /inbound/fba/2024-03-20/inboundPlans
		PUT /inbound/fba/2024-03-20/inboundPlans/*/cancellation
		POST /inbound/fba/2024-03-20/inboundPlans/*/packingInformation
		POST /inbound/fba/2024-03-20/inboundPlans/*/packingOptions
		POST /inbound/fba/2024-03-20/inboundPlans/*/packingOptions/*/confirmation
		POST /inbound/fba/2024-03-20/inboundPlans/*/placementOptions
		POST /inbound/fba/2024-03-20/inboundPlans/*/placementOptions/*/confirmation
		PUT /inbound/fba/2024-03-20/inboundPlans/*/shipments/*/trackingDetails
		POST /inbound/fba/2024-03-20/inboundPlans/*/transportationOptions
		POST /inbound/fba/2024-03-20/inboundPlans/*/transportationOptions/confirmation
		POST /mfn/v0/shipments`,
	{2, 6}: `
		GET /inbound/fba/2024-03-20/inboundPlans
		GET /inbound/fba/2024-03-20/inboundPlans/*
		GET /inbound/fba/2024-03-20/inboundPlans/*/boxes
		GET /inbound/fba/2024-03-20/inboundPlans/*/items
		GET /inbound/fba/2024-03-20/inboundPlans/*/packingOptions
		GET /inbound/fba/2024-03-20/inboundPlans/*/pallets
		GET /inbound/fba/2024-03-20/inboundPlans/*/placementOptions
		GET /inbound/fba/2024-03-20/inboundPlans/*/shipments/*
		GET /inbound/fba/2024-03-20/inboundPlans/*/shipments/*/deliveryChallanDocument
		GET /inbound/fba/2024-03-20/inboundPlans/*/transportationOptions
		PUT /inbound/fba/2024-03-20/items/compliance
		GET /inbound/fba/2024-03-20/operations/*`,
	{2, 10}: `
		POST /orders/v0/orders/*/shipmentConfirmation`,
	{2, 15}: `
		GET /dataKiosk/2023-11-15/queries/*
		DELETE /feeds/2021-06-30/feeds/*
		GET /feeds/2021-06-30/feeds/*
		GET /reports/2021-06-30/reports/*`,
	{2, 30}: `
		GET /fba/inbound/v0/prepInstructions
		GET /fba/inbound/v0/shipmentItems
		GET /fba/inbound/v0/shipments
		GET /fba/inbound/v0/shipments/*/billOfLading
		GET /fba/inbound/v0/shipments/*/items
		GET /fba/inbound/v0/shipments/*/labels
		GET /fba/outbound/2020-07-01/features
		GET /fba/outbound/2020-07-01/features/inventory/*
		GET /fba/outbound/2020-07-01/features/inventory/*/*
		GET /fba/outbound/2020-07-01/fulfillmentOrders
		POST /fba/outbound/2020-07-01/fulfillmentOrders
		GET /fba/outbound/2020-07-01/fulfillmentOrders/*
		PUT /fba/outbound/2020-07-01/fulfillmentOrders/*
		PUT /fba/outbound/2020-07-01/fulfillmentOrders/*/cancel
		PUT /fba/outbound/2020-07-01/fulfillmentOrders/*/return
		POST /fba/outbound/2020-07-01/fulfillmentOrders/preview
		GET /fba/outbound/2020-07-01/returnReasonCodes
		GET /fba/outbound/2020-07-01/tracking
		GET /fulfillment/outbound/2026-07-04/orders
		POST /fulfillment/outbound/2026-07-04/orders
		GET /fulfillment/outbound/2026-07-04/orders/*
		PUT /fulfillment/outbound/2026-07-04/orders/*
		PUT /fulfillment/outbound/2026-07-04/orders/*/cancel
		POST /fulfillment/outbound/2026-07-04/previews
		PUT /inbound/fba/2024-03-20/inboundPlans/*/name
		GET /inbound/fba/2024-03-20/inboundPlans/*/packingGroups/*/boxes
		GET /inbound/fba/2024-03-20/inboundPlans/*/packingGroups/*/items
		GET /inbound/fba/2024-03-20/inboundPlans/*/shipments/*/boxes
		GET /inbound/fba/2024-03-20/inboundPlans/*/shipments/*/contentUpdatePreviews
		POST /inbound/fba/2024-03-20/inboundPlans/*/shipments/*/contentUpdatePreviews
		GET /inbound/fba/2024-03-20/inboundPlans/*/shipments/*/contentUpdatePreviews/*
		POST /inbound/fba/2024-03-20/inboundPlans/*/shipments/*/contentUpdatePreviews/*/confirmation
		GET /inbound/fba/2024-03-20/inboundPlans/*/shipments/*/deliveryWindowOptions
		POST /inbound/fba/2024-03-20/inboundPlans/*/shipments/*/deliveryWindowOptions
		POST /inbound/fba/2024-03-20/inboundPlans/*/shipments/*/deliveryWindowOptions/*/confirmation
		GET /inbound/fba/2024-03-20/inboundPlans/*/shipments/*/items
		PUT /inbound/fba/2024-03-20/inboundPlans/*/shipments/*/name
		GET /inbound/fba/2024-03-20/inboundPlans/*/shipments/*/pallets
		PUT /inbound/fba/2024-03-20/inboundPlans/*/shipments/*/sourceAddress
		POST /inbound/fba/2024-03-20/items/labels
		POST /inbound/fba/2024-03-20/items/prepDetails`,
	{5, 5}: `
		GET /listings/2021-08-01/items/*
		DELETE /listings/2021-08-01/items/*/*
		PATCH /listings/2021-08-01/items/*/*`,
	{5, 10}: `
		GET /definitions/2020-09-01/productTypes
		GET /definitions/2020-09-01/productTypes/*
		DELETE /listings/2020-09-01/items/*/*
		PATCH /listings/2020-09-01/items/*/*
		PUT /listings/2020-09-01/items/*/*
		GET /listings/2021-08-01/items/*/*
		PUT /listings/2021-08-01/items/*/*
		GET /listings/2021-08-01/restrictions
		POST /shipping/v2/carrierAccounts/*`,
	{5, 15}: `
		POST /orders/v0/orders/*/shipment
		GET /shipping/v1/account
		POST /shipping/v1/purchaseShipment
		POST /shipping/v1/rates
		POST /shipping/v1/shipments
		GET /shipping/v1/shipments/*
		POST /shipping/v1/shipments/*/cancel
		POST /shipping/v1/shipments/*/containers/*/label
		POST /shipping/v1/shipments/*/purchaseLabels`,
	{5, 20}: `
		POST /service/v1/documents
		POST /service/v1/reservation
		DELETE /service/v1/reservation/*
		PUT /service/v1/reservation/*
		GET /service/v1/serviceJobs/*/appointmentSlots
		POST /service/v1/serviceJobs/*/appointments
		POST /service/v1/serviceJobs/*/appointments/*
		PUT /service/v1/serviceJobs/*/appointments/*/fulfillment
		PUT /service/v1/serviceJobs/*/cancellations
		PUT /service/v1/serviceJobs/*/completions
		POST /service/v1/serviceResources/*/capacity/fixed
		POST /service/v1/serviceResources/*/capacity/range
		PUT /service/v1/serviceResources/*/schedules`,
	{5, 30}: `
		POST /fba/outbound/2020-07-01/deliveryOffers
		POST /fulfillment/outbound/2026-07-04/offers`,
	{6, 12}: `
		POST /mfn/v0/eligibleShippingServices`,
	{10, 10}: `
		POST /aplus/2020-11-01/contentAsinValidations
		GET /aplus/2020-11-01/contentDocuments
		POST /aplus/2020-11-01/contentDocuments
		GET /aplus/2020-11-01/contentDocuments/*
		POST /aplus/2020-11-01/contentDocuments/*
		POST /aplus/2020-11-01/contentDocuments/*/approvalSubmissions
		GET /aplus/2020-11-01/contentDocuments/*/asins
		POST /aplus/2020-11-01/contentDocuments/*/asins
		POST /aplus/2020-11-01/contentDocuments/*/suspendSubmissions
		GET /aplus/2020-11-01/contentPublishRecords
		POST /uploads/2020-11-01/uploadDestinations/*
		POST /vendor/directFulfillment/inventory/v1/warehouses/*/items
		POST /vendor/directFulfillment/orders/2021-12-28/acknowledgements
		GET /vendor/directFulfillment/orders/2021-12-28/purchaseOrders
		GET /vendor/directFulfillment/orders/2021-12-28/purchaseOrders/*
		POST /vendor/directFulfillment/orders/v1/acknowledgements
		GET /vendor/directFulfillment/orders/v1/purchaseOrders
		GET /vendor/directFulfillment/orders/v1/purchaseOrders/*
		POST /vendor/directFulfillment/payments/v1/invoices
		POST /vendor/directFulfillment/shipping/2021-12-28/containerLabel
		GET /vendor/directFulfillment/shipping/2021-12-28/customerInvoices
		GET /vendor/directFulfillment/shipping/2021-12-28/customerInvoices/*
		GET /vendor/directFulfillment/shipping/2021-12-28/packingSlips
		GET /vendor/directFulfillment/shipping/2021-12-28/packingSlips/*
		POST /vendor/directFulfillment/shipping/2021-12-28/shipmentConfirmations
		POST /vendor/directFulfillment/shipping/2021-12-28/shipmentStatusUpdates
		GET /vendor/directFulfillment/shipping/2021-12-28/shippingLabels
		POST /vendor/directFulfillment/shipping/2021-12-28/shippingLabels
		GET /vendor/directFulfillment/shipping/2021-12-28/shippingLabels/*
		POST /vendor/directFulfillment/shipping/2021-12-28/shippingLabels/*
		GET /vendor/directFulfillment/shipping/v1/customerInvoices
		GET /vendor/directFulfillment/shipping/v1/customerInvoices/*
		GET /vendor/directFulfillment/shipping/v1/packingSlips
		GET /vendor/directFulfillment/shipping/v1/packingSlips/*
		POST /vendor/directFulfillment/shipping/v1/shipmentConfirmations
		POST /vendor/directFulfillment/shipping/v1/shipmentStatusUpdates
		GET /vendor/directFulfillment/shipping/v1/shippingLabels
		POST /vendor/directFulfillment/shipping/v1/shippingLabels
		GET /vendor/directFulfillment/shipping/v1/shippingLabels/*
		GET /vendor/directFulfillment/transactions/2021-12-28/transactions/*
		GET /vendor/directFulfillment/transactions/v1/transactions/*
		POST /vendor/orders/v1/acknowledgements
		GET /vendor/orders/v1/purchaseOrders
		GET /vendor/orders/v1/purchaseOrders/*
		GET /vendor/orders/v1/purchaseOrdersStatus
		POST /vendor/payments/v1/invoices
		POST /vendor/shipping/v1/shipmentConfirmations
		GET /vendor/shipping/v1/shipments
		POST /vendor/shipping/v1/shipments
		GET /vendor/shipping/v1/transportLabels`,
	{10, 20}: `
		GET /vendor/transactions/v1/transactions/*`,
	{10, 40}: `
		GET /service/v1/serviceJobs`,
	{20, 40}: `
		GET /service/v1/appointmentSlots
		GET /service/v1/serviceJobs/*`,
	{80, 100}: `
		GET /shipping/v2/accessPoints
		GET /shipping/v2/carrierAccountFormInputs
		PUT /shipping/v2/carrierAccounts
		PUT /shipping/v2/carrierAccounts/*
		PUT /shipping/v2/carrierAccounts/*/unlink
		POST /shipping/v2/claims
		POST /shipping/v2/collectionForms
		GET /shipping/v2/collectionForms/*
		PUT /shipping/v2/collectionForms/history
		POST /shipping/v2/ndrFeedback
		POST /shipping/v2/oneClickShipment
		POST /shipping/v2/shipments
		PUT /shipping/v2/shipments/*/cancel
		GET /shipping/v2/shipments/*/documents
		GET /shipping/v2/shipments/additionalInputs/schema
		POST /shipping/v2/shipments/directPurchase
		POST /shipping/v2/shipments/rates
		GET /shipping/v2/tracking
		PUT /shipping/v2/unmanifestedShipments`,
}
